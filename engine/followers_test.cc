// Runners that get the same batches, as bytes, keep the same slots and choose the same tokens: what
// the ranks of a divided model rely on. Only the first knows a scheduler; no token travels.

#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/engine_core.h"
#include "engine/step_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/model_runner.h"
#include "runner/slots/batch_bytes.h"
#include "runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAreArray;

constexpr int kVocab = 61;

// Runs every step on two runners: on the first as it is, on the second as it arrives.
class TwoRanks final : public StepRunner {
 public:
  TwoRanks(ModelRunner* leader, ModelRunner* follower) : leader_(*leader), follower_(*follower) {}

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return leader_.CheckTokens(argument, tokens);
  }

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return leader_.CheckLogitsRequest(request);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    WriteBatch(batch, bytes_);
    REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, leader_.Launch(batch));
    const std::vector<std::byte> received = bytes_;  // elsewhere, until Launch() has read it
    REPRISE_ASSIGN_OR_RETURN(const ScheduledBatch* same, reader_.Read(received));
    REPRISE_ASSIGN_OR_RETURN(const StepTicket other, follower_.Launch(*same));
    EXPECT_EQ(other.step, ticket.step);
    return ticket.step;
  }

  absl::StatusOr<StepOutput> Await(int64_t ticket) override {
    REPRISE_ASSIGN_OR_RETURN(const StepResult theirs, follower_.Await({.step = ticket}));
    REPRISE_ASSIGN_OR_RETURN(const StepResult ours, leader_.Await({.step = ticket}));
    EXPECT_THAT(theirs.tokens, ElementsAreArray(ours.tokens));
    num_tokens_ += ours.tokens.size();
    return StepOutput{.tokens = ours.tokens};
  }

  absl::Status status() const override { return leader_.status(); }
  size_t num_tokens() const { return num_tokens_; }

 private:
  ModelRunner& leader_;
  ModelRunner& follower_;
  BatchReader reader_;
  std::vector<std::byte> bytes_;
  size_t num_tokens_ = 0;
};

TEST(FollowersTest, ARunnerThatGetsTheBatchesAsBytesChoosesTheSameTokens) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  ToyModel same_model({.vocab_size = kVocab, .max_position = 64});
  // A small cache: sequences are preempted. Forks copy blocks.
  const ModelRunnerOptions options = {.max_num_seqs = 4,
                                      .max_num_tokens = 16,
                                      .block_size = 4,
                                      .num_blocks = 20,
                                      .max_steps_in_flight = 2};
  const auto leader = ModelRunner::Create(&model, options);
  const auto follower = ModelRunner::Create(&same_model, options);
  ASSERT_TRUE(leader.ok()) << leader.status();
  ASSERT_TRUE(follower.ok()) << follower.status();
  TwoRanks ranks(leader->get(), follower->get());
  const auto engine = EngineCore::Create(&ranks, {.scheduler = {.max_num_seqs = 4,
                                                                .max_num_tokens = 16,
                                                                .max_seq_len = 64,
                                                                .max_steps_in_flight = 2,
                                                                .num_blocks = 20,
                                                                .block_size = 4}});
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
