#include "engine/async_engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/engine_core.h"
#include "engine/testing/puppet_device.h"
#include "engine/testing/puppet_runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kMaxSeqLen = 16384;
constexpr int kForever = 1 << 30;  // longer than a test takes

// Collects a request's events and lets other threads wait for its end.
class Inbox {
 public:
  AsyncEngine::Listener listener() {
    return [this](const TokenEvent& event) { Put(event); };
  }

  void Put(const TokenEvent& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
  }

  // Waits for the `n`-th event.
  TokenEvent WaitFor(size_t n) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return events_.size() >= n; });
    return events_[n - 1];
  }

  // Waits for the end of `num_sequences`, and returns all that came.
  std::vector<TokenEvent> WaitForEnd(int num_sequences = 1) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      int num_ended = 0;
      for (const TokenEvent& event : events_) num_ended += event.finish != FinishReason::kNone;
      return num_ended >= num_sequences;
    });
    return events_;
  }

  std::vector<TokenEvent> events() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;
};

PuppetText TextOf(const std::vector<TokenEvent>& events, int sample = 0) {
  PuppetText text;
  for (const TokenEvent& event : events) {
    if (event.sample != sample) continue;
    if (event.token.has_value()) text.tokens.push_back(*event.token);
    text.finish = event.finish;
  }
  return text;
}

// An EngineCore with its runner.
class PuppetEngine : public StepEngine {
 public:
  static SchedulerOptions Options() {
    return {.max_num_seqs = 4,
            .max_num_tokens = 16,
            .max_seq_len = kMaxSeqLen,
            .max_steps_in_flight = 2,
            .num_blocks = 20000,
            .block_size = 4};
  }

  explicit PuppetEngine(const SchedulerOptions& options = Options()) : runner_(options) {
    auto core = EngineCore::Create(&runner_, {.scheduler = options});
    EXPECT_TRUE(core.ok()) << core.status();
    core_ = *std::move(core);
  }

  absl::StatusOr<SequenceId> Add(Request request) override {
    return core_->Add(std::move(request));
  }
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events) override {
    return core_->Cancel(id, events);
  }
  bool has_work() const override { return core_->has_work(); }
  absl::Status Step(std::vector<TokenEvent>& events) override {
    if (dies.load()) runner_.death = absl::DataLossError("fallen off the bus");
    if (fails_next.exchange(false)) runner_.fate_of_next = {.fails = true};
    return core_->Step(events);
  }
  EngineMetrics metrics() const override { return core_->metrics(); }
  void ForgetPrefixes() override { core_->ForgetPrefixes(); }
  absl::Status Idle() override {
    EXPECT_FALSE(core_->has_work());
    ++num_idles;
    return absl::OkStatus();
  }

  std::atomic<int> num_idles = 0;
  std::atomic<bool> dies = false;
  std::atomic<bool> fails_next = false;

 private:
  PuppetRunner runner_;
  std::unique_ptr<EngineCore> core_;
};

TEST(AsyncEngineTest, AnEngineWithoutWorkIsToldSoFromTimeToTime) {
  auto owned = std::make_unique<PuppetEngine>();
  PuppetEngine& puppet = *owned;
  AsyncEngine engine(std::move(owned), absl::Milliseconds(1));
  while (puppet.num_idles.load() < 3) std::this_thread::yield();
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().size(), 3u);
}

TEST(AsyncEngineTest, PrefixesAreForgottenForRequestsThatAreAddedLater) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  const auto num_cached_tokens = [&] {
    Inbox inbox;
    EXPECT_TRUE(
        engine.Add({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 1}, inbox.listener()).ok());
    return inbox.WaitForEnd().back().num_cached_tokens;
  };
  EXPECT_EQ(num_cached_tokens(), 0);
  EXPECT_EQ(num_cached_tokens(), 4);
  engine.ForgetPrefixes();
  EXPECT_EQ(num_cached_tokens(), 0);
  EXPECT_EQ(num_cached_tokens(), 4);
}

TEST(AsyncEngineTest, AnInfiniteIdleIntervalIsLong) {
  auto owned = std::make_unique<PuppetEngine>();
  PuppetEngine& puppet = *owned;
  AsyncEngine engine(std::move(owned), absl::InfiniteDuration());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().size(), 3u);
  EXPECT_EQ(puppet.num_idles.load(), 0);
}

TEST(AsyncEngineTest, RunsRequestsOfManyThreads) {
  const SchedulerOptions options = PuppetEngine::Options();
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const Request request = {.prompt = {t, i, 3},
                                 .max_new_tokens = 1 + (7 * i + t) % 13,
                                 .sampling = {.temperature = 1, .seed = 40},
                                 .num_sequences = 1 + i % 3};
        Inbox inbox;
        const auto id = engine.Add(request, inbox.listener());
        ASSERT_TRUE(id.ok()) << id.status();
        const std::vector<TokenEvent> events = inbox.WaitForEnd(request.num_sequences);
        for (const TokenEvent& event : events) EXPECT_EQ(event.sequence, *id);
        for (int sample = 0; sample < request.num_sequences; ++sample) {
          EXPECT_EQ(TextOf(events, sample), ExpectedText(request, sample, options, kMaxSeqLen));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_TRUE(engine.Shutdown().ok());
  EXPECT_EQ(engine.metrics().num_requests, 80);
  EXPECT_EQ(engine.metrics().num_running, 0);
  EXPECT_EQ(engine.metrics().num_blocks_used, 0);
}

TEST(AsyncEngineTest, TellsTheListenerWhatIsRefused) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  Inbox inbox;
  const auto id = engine.Add({.prompt = {1, -5}, .num_sequences = 3}, inbox.listener());
  ASSERT_TRUE(id.ok()) << id.status();
  const std::vector<TokenEvent> events = inbox.WaitForEnd();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].sequence, *id);
  EXPECT_EQ(events[0].finish, FinishReason::kRefused);
  EXPECT_EQ(events[0].error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_THAT(inbox.events(), SizeIs(1));
}

// The engine on its thread counts only the requests that it takes: its numbers are others.
TEST(AsyncEngineTest, ListenersHearTheNumberThatAddGave) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  Inbox refused;
  ASSERT_TRUE(engine.Add({.prompt = {}}, refused.listener()).ok());
  Inbox served;
  const auto id = engine.Add({.prompt = {1}, .max_new_tokens = 3}, served.listener());
  ASSERT_TRUE(id.ok()) << id.status();
  const std::vector<TokenEvent> events = served.WaitForEnd();
  EXPECT_THAT(events, SizeIs(3));
  for (const TokenEvent& event : events) EXPECT_EQ(event.sequence, *id);
  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_EQ(refused.events()[0].finish, FinishReason::kRefused);
}

TEST(AsyncEngineTest, CancelsFromAnotherThread) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  Inbox inbox;
  const auto id = engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener());
  ASSERT_TRUE(id.ok()) << id.status();
  inbox.WaitFor(5);
  engine.Cancel(*id);
  engine.Cancel(*id);               // no effect
  engine.Cancel(SequenceId(1000));  // likewise
  const std::vector<TokenEvent> events = inbox.WaitForEnd();
  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_THAT(inbox.events(), SizeIs(events.size()));  // it was the last
  EXPECT_THAT(events.back().finish,
              testing::AnyOf(FinishReason::kCancelled, FinishReason::kLength));
}

TEST(AsyncEngineTest, AListenerMayAddAndCancel) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  Inbox first;
  Inbox second;
  const auto id =
      engine.Add({.prompt = {1}, .max_new_tokens = kForever}, [&](const TokenEvent& event) {
        first.Put(event);
        if (event.index == 3 && event.token.has_value()) {
          EXPECT_TRUE(engine.Add({.prompt = {2}, .max_new_tokens = 2}, second.listener()).ok());
          engine.Cancel(event.sequence);
        }
      });
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(first.WaitForEnd().back().finish, FinishReason::kCancelled);
  EXPECT_EQ(second.WaitForEnd().back().finish, FinishReason::kLength);
}

TEST(AsyncEngineTest, DrainAndShutdownAreRefusedInAListener) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  Inbox inbox;
  ASSERT_TRUE(engine
                  .Add({.prompt = {1}, .max_new_tokens = 1},
                       [&](const TokenEvent& event) {
                         EXPECT_TRUE(absl::IsFailedPrecondition(engine.Drain()));
                         EXPECT_TRUE(absl::IsFailedPrecondition(engine.Shutdown()));
                         inbox.Put(event);
                       })
                  .ok());
  EXPECT_EQ(inbox.WaitForEnd().back().finish, FinishReason::kLength);
}

TEST(AsyncEngineTest, DrainWaitsForTheEndsAndRefusesWhatComesLater) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  std::vector<Inbox> inboxes(9);
  for (Inbox& inbox : inboxes) {
    ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 20}, inbox.listener()).ok());
  }
  ASSERT_TRUE(engine.Drain().ok());
  for (Inbox& inbox : inboxes) EXPECT_EQ(TextOf(inbox.events()).finish, FinishReason::kLength);
  const auto late = engine.Add({.prompt = {1}}, [](const TokenEvent&) { FAIL(); });
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine.Drain().ok());  // again
}

TEST(AsyncEngineTest, ShutdownEndsWhatRunsAndWhatWaits) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  std::vector<Inbox> inboxes(9);  // more than run at a time
  for (Inbox& inbox : inboxes) {
    ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener()).ok());
  }
  ASSERT_TRUE(engine.Shutdown().ok());
  for (Inbox& inbox : inboxes) {
    const std::vector<TokenEvent> events = inbox.events();
    ASSERT_FALSE(events.empty());
    EXPECT_THAT(events.back().finish,
                testing::AnyOf(FinishReason::kCancelled, FinishReason::kRefused));
  }
  EXPECT_TRUE(absl::IsUnavailable(engine.Add({.prompt = {1}}, nullptr).status()));
  EXPECT_TRUE(engine.Shutdown().ok());  // again
  engine.Cancel(SequenceId(0));         // no effect
}

TEST(AsyncEngineTest, AListenerIsDestroyedWithItsRequest) {
  AsyncEngine engine(std::make_unique<PuppetEngine>());
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 3}, [owned](const TokenEvent&) {}).ok());
  owned.reset();
  ASSERT_TRUE(engine.Drain().ok());
  EXPECT_TRUE(watched.expired());
}

TEST(AsyncEngineTest, AFailedStepIsToldAndOthersGoOn) {
  auto puppet = std::make_unique<PuppetEngine>();
  PuppetEngine& inner = *puppet;
  AsyncEngine engine(std::move(puppet));
  Inbox failed;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, failed.listener()).ok());
  failed.WaitFor(2);
  inner.fails_next = true;
  EXPECT_EQ(failed.WaitForEnd().back().finish, FinishReason::kError);
  EXPECT_TRUE(engine.status().ok());
  Inbox next;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 3}, next.listener()).ok());
  EXPECT_EQ(next.WaitForEnd().back().finish, FinishReason::kLength);
}

TEST(AsyncEngineTest, ADeadEngineEndsAllAndRefusesTheRest) {
  auto puppet = std::make_unique<PuppetEngine>();
  PuppetEngine& inner = *puppet;
  AsyncEngine engine(std::move(puppet));
  std::vector<Inbox> inboxes(9);
  for (Inbox& inbox : inboxes) {
    ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener()).ok());
  }
  inboxes[0].WaitFor(2);
  inner.dies = true;
  for (Inbox& inbox : inboxes) {
    const TokenEvent last = inbox.WaitForEnd().back();
    EXPECT_THAT(last.finish, testing::AnyOf(FinishReason::kError, FinishReason::kRefused));
    EXPECT_THAT(last.error.ToString(), HasSubstr("fallen off the bus"));
  }
  Inbox next;
  ASSERT_TRUE(engine.Add({.prompt = {1}}, next.listener()).ok());
  const TokenEvent refused = next.WaitForEnd().back();
  EXPECT_EQ(refused.finish, FinishReason::kRefused);
  EXPECT_EQ(refused.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.status(), absl::DataLossError("fallen off the bus"));
  EXPECT_TRUE(engine.Drain().ok());
}

TEST(AsyncEngineTest, RandomCallsFromManyThreadsEndEveryRequestOnce) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SchedulerOptions options = PuppetEngine::Options();
    options.num_blocks = 60;  // preempts
    options.max_waiting = 12;
    std::vector<Inbox> inboxes(60);
    {
      AsyncEngine engine(std::make_unique<PuppetEngine>(options));
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937 rng(seed * 10 + t);
          for (int i = 0; i < 20; ++i) {
            Inbox& inbox = inboxes[t * 20 + i];
            const auto id = engine.Add({.prompt = {t, static_cast<int>(rng() % 3), 4, 5, 6, 7},
                                        .max_new_tokens = 1 + static_cast<int>(rng() % 90),
                                        .priority = static_cast<int>(rng() % 2)},
                                       inbox.listener());
            if (!id.ok()) {  // shut down
              inbox.Put({.finish = FinishReason::kRefused});
              continue;
            }
            if (rng() % 3 == 0) engine.Cancel(*id);
            if (rng() % 5 == 0) engine.metrics();
            if (rng() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 500));
          }
          if (t == 0 && seed % 2 == 0) {
            EXPECT_TRUE(engine.Drain().ok());
          } else if (t == 1 && seed % 3 == 0) {
            EXPECT_TRUE(engine.Shutdown().ok());
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (Inbox& inbox : inboxes) {
      int num_ended = 0;
      for (const TokenEvent& event : inbox.events()) {
        num_ended += event.finish != FinishReason::kNone;
      }
      EXPECT_EQ(num_ended, 1);
    }
  }
}

}  // namespace
}  // namespace reprise
