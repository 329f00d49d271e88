#include "reprise/engine/ranked_steps.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/forwarding_collectives.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/testing/borrowed_runner.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_runner.h"

namespace reprise {
namespace {

using testing::Each;
using testing::HasSubstr;

SchedulerOptions Options() {
  return {.shape = {.max_num_seqs = 4,
                    .max_num_tokens = 64,
                    .max_seq_len = 400,
                    .max_steps_in_flight = 2,
                    .num_blocks = 80,
                    .block_size = 8}};
}

// Returns requests with prompts of several lengths. Every batch fits into one message.
std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    Request request = {.max_new_tokens = 3 + 5 * i};
    for (int j = 0; j < 4 + 7 * i; ++j) request.prompt.push_back((i + j * j) % kPuppetVocab);
    requests.push_back(std::move(request));
  }
  return requests;
}

using Texts = std::map<int64_t, PuppetText>;

// Runs the requests until they have ended. `before_step` may change the runner.
template <typename BeforeStep>
absl::StatusOr<Texts> RunRequests(StepRunner& runner, const BeforeStep& before_step) {
  REPRISE_ASSIGN_OR_RETURN(const auto engine,
                           Engine::Create(Borrowed(runner), {.scheduler = Options().policy}));
  for (const Request& request : Requests()) REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
  Texts texts;
  std::vector<TokenEvent> events;
  for (int step = 0; engine->has_work(); ++step) {
    before_step(step);
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const TokenEvent& event : events) texts[event.sequence.value()].Add(event);
  }
  return texts;
}

absl::StatusOr<Texts> TextsOfOneRank() {
  PuppetRunner runner(Options());
  return RunRequests(runner, [](int) {});
}

// Calls `change` with the runner of each rank: on rank 0 before each step, and once on all other
// ranks.
template <typename Change>
std::vector<absl::Status> RunRanks(int world, Texts& texts, const Change& change) {
  return RunThreadRanks(world, [&](Collectives& collectives) -> absl::Status {
    PuppetRunner own(Options());
    const int rank = collectives.ranks().rank;
    if (rank != 0) {
      change(rank, 0, own);
      return FollowSteps(own, collectives);
    }
    RankedSteps steps(Borrowed(own), &collectives);
    REPRISE_ASSIGN_OR_RETURN(texts, RunRequests(steps, [&](int step) { change(0, step, own); }));
    return absl::OkStatus();
  });
}

TEST(RankedStepsTest, AllRanksRunTheStepsOfRankZero) {
  const absl::StatusOr<Texts> alone = TextsOfOneRank();
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const int world : {2, 4}) {
    Texts texts;
    // The fake devices of the other ranks check that slots and blocks are consistent with the
    // batches that they receive.
    EXPECT_THAT(RunRanks(world, texts, [](int, int, PuppetRunner&) {}), Each(absl::OkStatus()));
    EXPECT_EQ(texts, *alone);
  }
}

TEST(RankedStepsTest, LongBatchIsSentInTwoMessages) {
  SchedulerOptions options = Options();
  options.shape.max_num_tokens = options.shape.max_seq_len = 5000;
  options.shape.num_blocks = 700;
  Request request = {.max_new_tokens = 4};
  for (int j = 0; j < 4500; ++j) request.prompt.push_back(j * 7 % kPuppetVocab);
  PuppetText text;
  const auto run = [&](Collectives& collectives) -> absl::Status {
    PuppetRunner own(options);
    if (collectives.ranks().rank != 0) return FollowSteps(own, collectives);
    RankedSteps steps(Borrowed(own), &collectives);
    REPRISE_ASSIGN_OR_RETURN(const auto engine,
                             Engine::Create(Borrowed(steps), {.scheduler = options.policy}));
    REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
    std::vector<TokenEvent> events;
    while (engine->has_work()) REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const TokenEvent& event : events) text.Add(event);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunThreadRanks(2, run), Each(absl::OkStatus()));
  EXPECT_EQ(text.tokens.size(), 4u);
}

TEST(RankedStepsTest, StepThatFailsOnAllRanksFailsOnlyItsSequences) {
  Texts texts;
  const auto change = [](int, int step, PuppetRunner& runner) {
    if (step == 0) runner.fate_of_next = {.fails = true};
  };
  EXPECT_THAT(RunRanks(3, texts, change), Each(absl::OkStatus()));
  int num_failed = 0, num_served = 0;
  for (const auto& [id, text] : texts) {
    ++(text.finish == FinishReason::kError ? num_failed : num_served);
  }
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_served, 0);
}

TEST(RankedStepsTest, BatchRefusedByAllRanksDoesNotFailTheRanks) {
  Texts texts;
  const auto change = [](int, int step, PuppetRunner& runner) {
    if (step == 0) runner.refusal_of_next = absl::InvalidArgumentError("refused");
  };
  EXPECT_THAT(RunRanks(2, texts, change), Each(absl::OkStatus()));
  EXPECT_EQ(texts.size(), Requests().size());
}

// Rank 0 counts calls that throw, so all other ranks stay in step.
TEST(RankedStepsTest, RunnerThatThrowsOnAllRanksFailsOnlyItsSequences) {
  for (const bool in_launch : {false, true}) {
    SCOPED_TRACE(in_launch);
    Texts texts;
    const auto change = [&](int, int step, PuppetRunner& runner) {
      if (step != 0) return;
      (in_launch ? runner.next_launch_throws : runner.next_await_throws) = true;
    };
    EXPECT_THAT(RunRanks(2, texts, change), Each(absl::OkStatus()));
    EXPECT_EQ(texts.size(), Requests().size());
  }
}

TEST(RankedStepsTest, StepThatFailsOnOneRankFailsAllRanks) {
  Texts texts;
  const std::vector<absl::Status> results =
      RunRanks(3, texts, [](int rank, int, PuppetRunner& runner) {
        if (rank == 2) runner.fate_of_next = {.fails = true};
      });
  EXPECT_EQ(results[2].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(results[2].message(), HasSubstr("a step failed: here"));
  EXPECT_THAT(results[2].message(), HasSubstr("but not on rank 0"));
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  EXPECT_EQ(results[1].code(), absl::StatusCode::kUnavailable) << results[1];
}

TEST(RankedStepsTest, StepThatFailsOnlyOnRankZeroFailsAllRanks) {
  Texts texts;
  const std::vector<absl::Status> results =
      RunRanks(2, texts, [](int rank, int step, PuppetRunner& runner) {
        if (rank == 0 && step == 2) runner.fate_of_next = {.fails = true};
      });
  EXPECT_THAT(results[1].message(), HasSubstr("no step failed: here OK, but one failed on rank 0"));
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
}

TEST(RankedStepsTest, BatchRefusedByOneRankFailsAllRanks) {
  for (const int refusing : {0, 1}) {
    SCOPED_TRACE(refusing);
    Texts texts;
    const std::vector<absl::Status> results =
        RunRanks(2, texts, [&](int rank, int step, PuppetRunner& runner) {
          if (rank == refusing && step == 0) {
            runner.refusal_of_next = absl::InvalidArgumentError("refused");
          }
        });
    EXPECT_EQ(results[1].code(), absl::StatusCode::kInternal);
    EXPECT_THAT(results[1].message(), HasSubstr(refusing == 1 ? "the last batch was refused: here"
                                                              : "the last batch was not refused"));
    EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  }
}

TEST(RankedStepsTest, DeadRunnerFailsAllRanks) {
  Texts texts;
  const std::vector<absl::Status> results =
      RunRanks(2, texts, [](int rank, int, PuppetRunner& runner) {
        if (rank == 1) runner.death = absl::InternalError("the device is gone");
      });
  EXPECT_EQ(results[1], absl::InternalError("the device is gone"));
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
}

TEST(RankedStepsTest, DeadRunnerOfRankZeroFailsAllRanks) {
  Texts texts;
  const std::vector<absl::Status> results =
      RunRanks(3, texts, [](int rank, int step, PuppetRunner& runner) {
        if (rank == 0 && step == 2) runner.death = absl::InternalError("the device is gone");
      });
  EXPECT_FALSE(results[0].ok());
  for (const int rank : {1, 2}) {
    EXPECT_EQ(results[rank], absl::UnavailableError("rank 0: the device is gone"));
  }
}

// The runner of rank 0 dies without a step in flight.
TEST(RankedStepsTest, DeadRunnerOfRankZeroWithoutWorkFailsAllRanks) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        PuppetRunner own(Options());
        if (collectives.ranks().rank != 0) return FollowSteps(own, collectives);
        RankedSteps steps(Borrowed(own), &collectives);
        own.death = absl::InternalError("the device is gone");
        return absl::OkStatus();
      });
  EXPECT_EQ(results[1], absl::UnavailableError("rank 0: the device is gone"));
}

// A rank whose AwaitDevice() call number `losing_wait` fails, because another rank is lost.
class LosingRank final : public ForwardingCollectives {
 public:
  LosingRank(Collectives* ranks, int losing_wait)
      : ForwardingCollectives(*ranks), num_left_(losing_wait) {}
  static absl::Status Lost() { return absl::DeadlineExceededError("a rank did not come"); }

  absl::Status status() const override { return num_left_ < 0 ? Lost() : inner().status(); }
  absl::Status AwaitDevice(absl::FunctionRef<absl::Status()> wait,
                           std::optional<absl::Duration>) override {
    const absl::Status result = wait();
    return --num_left_ < 0 ? Lost() : result;
  }

 private:
  int num_left_;
};

// Fails one wait per run: for a launch, or for the output of a step.
TEST(RankedStepsTest, RankLostDuringADeviceWaitFailsAllRanks) {
  for (const int losing : {0, 1}) {
    for (const int wait : {0, 5, 6, 7, 8}) {
      SCOPED_TRACE(testing::Message() << "wait " << wait << " of rank " << losing);
      const std::vector<absl::Status> results =
          RunThreadRanks(2, [&](Collectives& ranks) -> absl::Status {
            PuppetRunner own(Options());
            LosingRank lost(&ranks, wait);
            Collectives& collectives = ranks.ranks().rank == losing ? lost : ranks;
            if (ranks.ranks().rank != 0) return FollowSteps(own, collectives);
            RankedSteps steps(Borrowed(own), &collectives);
            return RunRequests(steps, [](int) {}).status();
          });
      EXPECT_EQ(results[losing], LosingRank::Lost());
      EXPECT_EQ(results[1 - losing].code(), absl::StatusCode::kUnavailable) << results[1 - losing];
    }
  }
}

TEST(RankedStepsTest, IdleKeepsOtherRanksWaiting) {
  Texts texts;
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [&](Collectives& collectives) -> absl::Status {
        PuppetRunner own(Options());
        if (collectives.ranks().rank != 0) return FollowSteps(own, collectives);
        RankedSteps steps(Borrowed(own), &collectives);
        for (int i = 0; i < 3; ++i) REPRISE_RETURN_IF_ERROR(steps.Idle());
        REPRISE_ASSIGN_OR_RETURN(texts, RunRequests(steps, [](int) {}));
        return steps.Idle();
      });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  EXPECT_EQ(texts, *TextsOfOneRank());
}

TEST(RankedStepsTest, IdleReturnsTheErrorOfAnEndedRank) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        PuppetRunner own(Options());
        if (collectives.ranks().rank != 0) return absl::OkStatus();
        RankedSteps steps(Borrowed(own), &collectives);
        const absl::Status status = steps.Idle();
        EXPECT_EQ(steps.status(), status);
        return status;
      });
  EXPECT_EQ(results[0], absl::UnavailableError("rank 1 has ended"));
}

TEST(RankedStepsTest, RejectsEmbeddingsOnAGpu) {
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [](Collectives& collectives) -> absl::Status {
        PuppetRunner own(Options());
        if (collectives.ranks().rank != 0) return FollowSteps(own, collectives);
        const RankedSteps steps(Borrowed(own), &collectives);
        return steps.CheckEmbeddings("embeddings[0]", {.num_rows = 1, .dim = 4, .gpu = 0});
      });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(results[0].message(), HasSubstr("embeddings[0] must be on the host"));
  EXPECT_TRUE(results[1].ok()) << results[1];
}

}  // namespace
}  // namespace reprise
