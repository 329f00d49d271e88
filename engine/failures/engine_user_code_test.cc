// Code of users that throws under an Engine: stages, drafters and models fail the step that calls
// them.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/sampling/logits_stage.h"
#include "reprise/runner/speculation/drafter.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kVocab = 61;

// Throws in one of its calls, if it is armed.
class Fuse {
 public:
  void Arm(bool throws_integer) {
    is_armed_ = true;
    throws_integer_ = throws_integer;
  }
  void Burn() {
    if (!std::exchange(is_armed_, false)) return;
    if (throws_integer_) throw 5;
    throw std::runtime_error("burnt");
  }

 private:
  bool is_armed_ = false;
  bool throws_integer_ = false;
};

class ThrowingStage : public LogitsStage {
 public:
  absl::Status BeforeSample(const LogitsStep&) override {
    before.Burn();
    return absl::OkStatus();
  }
  absl::Status AfterSample(const LogitsStep&) override {
    after.Burn();
    return absl::OkStatus();
  }

  Fuse before, after;
};

class ThrowingDrafter : public Drafter {
 public:
  absl::Status Propose(const DraftStep&) override {
    fuse.Burn();
    return absl::OkStatus();
  }

  Fuse fuse;
};

class ThrowingModel : public ToyModel {
 public:
  using ToyModel::ToyModel;
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    fuse.Burn();
    return ToyModel::Forward(step);
  }

  Fuse fuse;
};

struct UserCodeCase {
  int max_steps_in_flight;
  bool throws_integer;
};

class EngineUserCodeTest : public testing::TestWithParam<UserCodeCase> {
 protected:
  EngineUserCodeTest() : model_({.vocab_size = kVocab, .max_position = 64}) {
    auto engine = CreateEngine(
        &model_,
        {.runner = {.max_num_seqs = 4,
                    .max_num_tokens = 32,
                    .max_steps_in_flight = GetParam().max_steps_in_flight,
                    .cache = {.block_size = 4, .size = NumBlocks{80}},
                    .logits = {.stages = {&stage_}},
                    .speculation = {.max_drafts = 2, .proposer = CustomProposer{drafter_}}},
         .scheduler = {.speculation = SpeculationPolicy{.num_drafts = 2}}});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  SequenceId Add(const Request& request) {
    const auto id = engine_->Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }

  // The text of a greedy request without other requests.
  std::vector<int32_t> DenseText(const Request& request) const {
    std::vector<int32_t> text = request.prompt;
    for (int i = 0; i < request.max_new_tokens; ++i) {
      text.push_back(static_cast<int32_t>(model_.DenseLogits(text).argmax().item<int64_t>()));
    }
    return {text.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), text.end()};
  }

  // Runs two requests whose step `fuse` fails, and a third request, which must get the whole text.
  void ExpectToFailOneStep(Fuse& fuse, LogitsStageSet stages) {
    const Request plain = {.prompt = {1, 2, 3}, .max_new_tokens = 20};
    Request staged = {.prompt = {4, 5}, .max_new_tokens = 20};
    staged.logits_stages = stages;
    const SequenceId a = Add(plain);
    const SequenceId b = Add(staged);
    std::vector<TokenEvent> events;
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine_->Step(events).ok());
    std::map<SequenceId, std::vector<int32_t>> texts;
    std::map<SequenceId, absl::Status> errors;
    fuse.Arm(GetParam().throws_integer);
    for (int i = 0; engine_->has_work(); ++i) {
      ASSERT_LT(i, 100);
      ASSERT_EQ(engine_->Step(events), absl::OkStatus());
      engine_->scheduler().CheckInvariants();
    }
    for (const TokenEvent& event : events) {
      if (event.token.has_value()) texts[event.sequence].push_back(*event.token);
      if (event.finish == FinishReason::kError) errors[event.sequence] = event.error;
    }
    ASSERT_THAT(errors, SizeIs(2));
    for (const auto& [id, request] : {std::pair(a, plain), std::pair(b, staged)}) {
      EXPECT_EQ(errors[id].code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(errors[id].message()),
                  HasSubstr(GetParam().throws_integer ? "is not a std::exception" : "burnt"));
      std::vector<int32_t> expected = DenseText(request);
      ASSERT_LT(texts[id].size(), expected.size());
      expected.resize(texts[id].size());
      EXPECT_EQ(texts[id], expected);
    }
    EXPECT_EQ(engine_->metrics().num_failed_steps, 1);
    EXPECT_EQ(engine_->metrics().num_blocks_used, 0);
    const SequenceId later = Add(staged);
    EXPECT_EQ(RunAll(*engine_).at(later.value()), DenseText(staged));
  }

  ThrowingModel model_;
  ThrowingStage stage_;
  ThrowingDrafter drafter_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineUserCodeTest, FailsOneStepIfAStageThrowsBeforeTheChoice) {
  ExpectToFailOneStep(stage_.before, /*stages=*/1);
}

TEST_P(EngineUserCodeTest, FailsOneStepIfAStageThrowsAfterTheChoice) {
  ExpectToFailOneStep(stage_.after, /*stages=*/1);
}

TEST_P(EngineUserCodeTest, FailsOneStepIfADrafterThrows) {
  ExpectToFailOneStep(drafter_.fuse, /*stages=*/0);
}

TEST_P(EngineUserCodeTest, FailsOneStepIfTheModelThrows) {
  ExpectToFailOneStep(model_.fuse, /*stages=*/0);
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineUserCodeTest,
                         testing::Values(UserCodeCase{1, false}, UserCodeCase{1, true},
                                         UserCodeCase{2, false}, UserCodeCase{2, true}));

}  // namespace
}  // namespace reprise
