// A rank whose forward pass fails while those of the others wait for it: all are told why, at once.

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/forwarding_driver.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"

namespace reprise {
namespace {

using testing::HasSubstr;

// Ranks that were not told would wait for a minute.
constexpr absl::Duration kAtOnce = absl::Seconds(5);

absl::Status NoMemory() { return absl::ResourceExhaustedError("no memory for the step"); }

// A model whose `failing`th forward pass fails, from 1 on.
class FailingModel final : public Model {
 public:
  FailingModel(std::unique_ptr<Model> model, int failing)
      : model_(std::move(model)), num_left_(failing) {}

  const ModelSpec& spec() const override { return model_->spec(); }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    if (--num_left_ == 0) return NoMemory();
    return model_->Forward(step);
  }

 private:
  std::unique_ptr<Model> model_;
  int num_left_;
};

// Rank 1's model fails at the `failing`th pass; `run` is what rank 0 does with its own.
template <typename Run>
std::vector<absl::Status> RunWithFailure(int failing, ModelEngineOptions options, const Run& run) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen2");
  EXPECT_TRUE(golden.ok()) << golden.status();
  options.runner.max_num_seqs = 2;
  options.runner.max_num_tokens = 64;
  options.runner.max_seq_len = 64;
  options.runner.cache.size = NumBlocks{32};
  return RunThreadRanks(2, [&](Collectives& collectives) -> absl::Status {
    at::set_num_threads(1);
    ModelEngineOptions own = options;
    own.runner.ranks.collectives = &collectives;
    REPRISE_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        LoadGoldenModel(*golden, c10::kCPU, DType::kFloat32, MlaCache::kLatent, &collectives));
    const absl::Time begin = absl::Now();
    absl::Status status;
    if (collectives.ranks().rank == 1) {
      FailingModel failing_model(std::move(model), failing);
      status = FollowEngine(&failing_model, own);
    } else {
      status = run(model.get(), own);
    }
    EXPECT_LT(absl::Now() - begin, kAtOnce);
    return status;
  });
}

TEST(RankFailuresTest, AFailureOfOneRankInTheSetUpIsToldToTheOthers) {
  // Steps are timed where a cache swaps.
  const std::vector<absl::Status> results =
      RunWithFailure(1, {.runner = {.cache = {.swap = NumBlocks{8}}}},
                     [](Model* model, const ModelEngineOptions& options) {
                       return CreateEngine(model, options).status();
                     });
  EXPECT_EQ(results[1], NoMemory());
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1: no memory for the step"));
}

TEST(RankFailuresTest, AStepThatFailsOnOneRankOnlyEndsTheOthersWithItsCause) {
  for (const auto graphs : {GraphSetOptions::Mode::kOff, GraphSetOptions::Mode::kLazy}) {
    const std::vector<absl::Status> results =
        RunWithFailure(3, {.runner = {.graphs = {.mode = graphs}}},
                       [](Model* model, const ModelEngineOptions& options) -> absl::Status {
                         REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model, options));
                         const Request request = {.prompt = {1, 2, 3}, .max_new_tokens = 20};
                         REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
                         std::vector<TokenEvent> events;
                         for (int step = 0; step < 20 && engine->has_work(); ++step) {
                           events.clear();
                           const absl::Status status = engine->Step(events);
                           for (const TokenEvent& event : events) {
                             if (event.error.ok()) continue;
                             EXPECT_EQ(event.finish, FinishReason::kError);
                             EXPECT_FALSE(engine->has_work());
                             return event.error;
                           }
                           REPRISE_RETURN_IF_ERROR(status);
                         }
                         return absl::InternalError("expected an event with an error");
                       });
    EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1: no memory for the step"));
    EXPECT_THAT(std::string(results[1].message()), HasSubstr("no memory for the step"));
  }
}

// Refills the slots until `fails` is set.
class FailingRefill final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  absl::Status Refill(const RefillArgs& args) override {
    return fails ? NoMemory() : ForwardingDriver::Refill(args);
  }
  bool fails = false;
};

// Ranks of a caller's own scheduler launch the same batches, without an engine that compares
// results.
TEST(RankFailuresTest, ARefillThatFailsOnOneRankOnlyIsToldToTheOthers) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen2");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [&](Collectives& collectives) -> absl::Status {
        at::set_num_threads(1);
        REPRISE_ASSIGN_OR_RETURN(
            const std::unique_ptr<Model> model,
            LoadGoldenModel(*golden, c10::kCPU, DType::kFloat32, MlaCache::kLatent, &collectives));
        REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceDriver> cpu,
                                 MakeDeviceDriver(c10::kCPU, {}));
        auto driver = std::make_unique<FailingRefill>(std::move(cpu));
        FailingRefill& refill = *driver;
        REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRunner> runner,
                                 ModelRunner::Create(model.get(),
                                                     {.max_num_seqs = 2,
                                                      .max_num_tokens = 64,
                                                      .max_seq_len = 64,
                                                      .cache = {.size = NumBlocks{32}},
                                                      .ranks = {.collectives = &collectives}},
                                                     std::move(driver)));
        const SlotJoin join[] = {JoinOf(SlotId(0), {}, 3)};
        const BlockTableUpdate update[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
        const int32_t prompt[] = {1, 2, 3};
        const ScheduledRow prefill[] = {{.slot = SlotId(0), .tokens = prompt}};
        REPRISE_RETURN_IF_ERROR(
            runner->Step({.joins = join, .updates = update, .rows = prefill}).status());
        refill.fails = collectives.ranks().rank == 1;
        const ScheduledRow decode[] = {{.slot = SlotId(0)}};
        const absl::Time begin = absl::Now();
        const absl::Status status = runner->Step({.rows = decode}).status();
        EXPECT_LT(absl::Now() - begin, kAtOnce);
        return status;
      });
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("rank 1: no memory for the step"));
  EXPECT_EQ(results[1], NoMemory());
}

}  // namespace
}  // namespace reprise
