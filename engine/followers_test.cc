// A runner that receives batches as bytes keeps the same slots and samples the same tokens as the
// runner that launches the batches themselves. The ranks of a sharded model rely on this. Only the
// first runner has a scheduler; sampled tokens are not sent.

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/testing/borrowed_runner.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/slots/batch_bytes.h"
#include "reprise/runner/step_runner.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAreArray;

constexpr int kVocab = 61;

// Runs every step on two runners: the first gets the batch, the second gets the batch that was read
// back from its bytes.
class TwoRanks final : public StepRunner {
 public:
  TwoRanks(ModelRunner* leader, ModelRunner* follower) : leader_(*leader), follower_(*follower) {}

  const RunnerShape& shape() const override { return leader_.shape(); }

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return leader_.CheckLogits(request);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    WriteBatch(batch, bytes_);
    REPRISE_ASSIGN_OR_RETURN(const int64_t step, leader_.Launch(batch));
    const std::vector<std::byte> received =
        bytes_;  // at another address, and valid until Launch() returns
    REPRISE_ASSIGN_OR_RETURN(const ScheduledBatch* same, reader_.Read(received));
    REPRISE_ASSIGN_OR_RETURN(const int64_t other, follower_.Launch(*same));
    EXPECT_EQ(other, step);
    return step;
  }

  absl::StatusOr<StepResult> Await(int64_t step) override {
    REPRISE_ASSIGN_OR_RETURN(const StepResult theirs, follower_.Await(step));
    REPRISE_ASSIGN_OR_RETURN(const StepResult ours, leader_.Await(step));
    EXPECT_THAT(theirs.tokens, ElementsAreArray(ours.tokens));
    num_tokens_ += ours.tokens.size();
    return ours;
  }

  absl::Status status() const override { return leader_.status(); }
  const GraphReport& graph_report() const override { return leader_.graph_report(); }
  size_t num_tokens() const { return num_tokens_; }

 private:
  ModelRunner& leader_;
  ModelRunner& follower_;
  BatchReader reader_;
  std::vector<std::byte> bytes_;
  size_t num_tokens_ = 0;
};

TEST(FollowersTest, RunnerWithBatchesFromBytesSamplesTheSameTokens) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  ToyModel same_model({.vocab_size = kVocab, .max_position = 64});
  // The small cache causes preemptions. Forks copy blocks.
  const ModelRunnerOptions options = {.max_num_seqs = 4,
                                      .max_num_tokens = 16,
                                      .max_steps_in_flight = 2,
                                      .cache = {.block_size = 4, .size = NumBlocks{20}}};
  const auto leader = ModelRunner::Create(&model, options);
  const auto follower = ModelRunner::Create(&same_model, options);
  ASSERT_TRUE(leader.ok()) << leader.status();
  ASSERT_TRUE(follower.ok()) << follower.status();
  TwoRanks ranks(leader->get(), follower->get());
  const auto engine = Engine::Create(Borrowed(ranks));
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::mt19937 rng(5);
  for (int i = 0; i < 12; ++i) {
    Request request = {.max_new_tokens = 5 + static_cast<int>(rng() % 20)};
    for (int n = 1 + rng() % 20; n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(rng() % kVocab));
    }
    if (i % 2 == 0) request.sampling = {.temperature = 0.9f, .top_k = 20};
    if (i % 3 == 0) request.num_sequences = 2;
    ASSERT_TRUE((*engine)->Add(request).ok());
  }
  std::vector<TokenEvent> events;
  while ((*engine)->has_work()) {
    const absl::Status status = (*engine)->Step(events);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (const TokenEvent& event : events) EXPECT_TRUE(event.error.ok()) << event.error;
  EXPECT_GT(ranks.num_tokens(), 150);
  EXPECT_GT((*engine)->scheduler().num_preemptions(), 0);
  EXPECT_GT((*engine)->scheduler().num_forks(), 0);
}

}  // namespace
}  // namespace reprise
