#include "reprise/engine/async_engine.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_runner.h"
#include "reprise/engine/testing/throwing_callbacks.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kMaxSeqLen = 16384;
constexpr int kForever = 1 << 30;  // the sequence ends at kMaxSeqLen

// Collects the events of a request. Other threads can wait for its end.
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

  // Waits until `num_sequences` sequences have ended, and returns all events.
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

SchedulerOptions Options() {
  return {.shape = {.max_num_seqs = 4,
                    .max_num_tokens = 16,
                    .max_seq_len = kMaxSeqLen,
                    .max_steps_in_flight = 2,
                    .num_blocks = 20000,
                    .block_size = 4}};
}

// A runner that another thread can make die or fail. Counts the calls of Idle().
class RemoteRunner final : public PuppetRunner {
 public:
  using PuppetRunner::PuppetRunner;

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    if (fails_next.exchange(false)) fate_of_next = {.fails = true};
    return PuppetRunner::Launch(batch);
  }
  absl::Status status() const override {
    return dies.load() ? absl::DataLossError("fallen off the bus") : PuppetRunner::status();
  }
  absl::Status Idle() override {
    ++num_idles;
    return absl::OkStatus();
  }

  std::atomic<int> num_idles = 0;
  std::atomic<bool> dies = false;
  std::atomic<bool> fails_next = false;
};

// An engine and its runner.
struct Puppet {
  std::unique_ptr<Engine> engine;
  RemoteRunner* runner = nullptr;
};

Puppet MakePuppet(const SchedulerOptions& options = Options()) {
  auto runner = std::make_unique<RemoteRunner>(options);
  RemoteRunner* const remote = runner.get();
  auto engine = Engine::Create(std::move(runner), {.scheduler = options.policy});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return {.engine = *std::move(engine), .runner = remote};
}

std::unique_ptr<Engine> MakeEngine(const SchedulerOptions& options = Options()) {
  return MakePuppet(options).engine;
}

TEST(AsyncEngineTest, CallsIdleRegularlyWithoutWork) {
  Puppet puppet = MakePuppet();
  AsyncEngine engine(std::move(puppet.engine), absl::Milliseconds(1));
  while (puppet.runner->num_idles.load() < 3) std::this_thread::yield();
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().size(), 3u);
}

TEST(AsyncEngineTest, LaterRequestsDoNotHitForgottenPrefixes) {
  AsyncEngine engine(MakeEngine());
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

class AsyncPrefixEventsTest : public testing::Test {
 protected:
  AsyncPrefixEventsTest() {
    options_.policy.num_prefix_events = 3;
    engine_.emplace(MakeEngine(options_));
  }

  // Serves a prompt with `num_blocks` full blocks, which depend on `first`.
  void Serve(int first, int num_blocks) {
    Inbox inbox;
    std::vector<int32_t> prompt(4 * num_blocks + 1, 7);
    prompt[0] = first;
    EXPECT_TRUE(engine_->Add({.prompt = prompt, .max_new_tokens = 1}, inbox.listener()).ok());
    EXPECT_EQ(inbox.WaitForEnd().back().finish, FinishReason::kLength);
  }

  static std::vector<PrefixEvent::Kind> Kinds(const OwnedPrefixEvents& taken) {
    std::vector<PrefixEvent::Kind> kinds;
    for (const PrefixEvent& event : taken.events) kinds.push_back(event.kind);
    return kinds;
  }

  SchedulerOptions options_ = Options();
  std::optional<AsyncEngine> engine_;
};

TEST_F(AsyncPrefixEventsTest, TakesTheEventsSinceTheLastCall) {
  using Kind = PrefixEvent::Kind;
  EXPECT_THAT(engine_->TakePrefixEvents().events, IsEmpty());
  Serve(/*first=*/1, /*num_blocks=*/2);
  const OwnedPrefixEvents first = engine_->TakePrefixEvents();
  ASSERT_THAT(Kinds(first), ElementsAre(Kind::kStored, Kind::kStored));
  EXPECT_EQ(first.events[0].num_tokens, 4);
  EXPECT_EQ(first.events[1].parent, first.events[0].hash);
  EXPECT_EQ(first.num_lost, 0);
  EXPECT_THAT(engine_->TakePrefixEvents().events, IsEmpty());
  engine_->ForgetPrefixes();
  EXPECT_THAT(Kinds(engine_->TakePrefixEvents()), ElementsAre(Kind::kCleared));
}

TEST_F(AsyncPrefixEventsTest, CountsLostEvents) {
  Serve(/*first=*/1, /*num_blocks=*/2);
  Serve(/*first=*/2, /*num_blocks=*/4);
  const OwnedPrefixEvents taken = engine_->TakePrefixEvents();
  EXPECT_THAT(taken.events, SizeIs(3));
  EXPECT_EQ(taken.num_lost, 3);
}

TEST_F(AsyncPrefixEventsTest, TakesEventsInAListener) {
  Inbox inbox;
  std::vector<size_t> num_events;
  ASSERT_TRUE(engine_
                  ->Add({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 2},
                        [&](const TokenEvent& event) {
                          num_events.push_back(engine_->TakePrefixEvents().events.size());
                          inbox.Put(event);
                        })
                  .ok());
  inbox.WaitForEnd();
  EXPECT_THAT(num_events, ElementsAre(1, 0));
}

TEST_F(AsyncPrefixEventsTest, TakesTheLastEventsAfterShutdown) {
  Serve(/*first=*/1, /*num_blocks=*/2);
  ASSERT_TRUE(engine_->Shutdown().ok());
  EXPECT_THAT(engine_->TakePrefixEvents().events, SizeIs(2));
  EXPECT_THAT(engine_->TakePrefixEvents().events, IsEmpty());
}

TEST_F(AsyncPrefixEventsTest, GivesEachEventToOneOfSeveralThreads) {
  std::atomic<int64_t> num_events = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        if (t == 0) Serve(/*first=*/i, /*num_blocks=*/1);
        const OwnedPrefixEvents taken = engine_->TakePrefixEvents();
        num_events += static_cast<int64_t>(taken.events.size()) + taken.num_lost;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine_->Shutdown().ok());
  const OwnedPrefixEvents taken = engine_->TakePrefixEvents();
  EXPECT_EQ(num_events + static_cast<int64_t>(taken.events.size()) + taken.num_lost, 20);
}

TEST(AsyncEngineTest, InspectsTheEngineFromAnyThread) {
  AsyncEngine engine(MakeEngine());
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  inbox.WaitForEnd();
  const auto num_steps = [&] {
    int64_t num = 0;
    EXPECT_EQ(engine.Inspect([&](const Engine& inner) {
      inner.scheduler().CheckInvariants();
      EXPECT_EQ(&inner.graph_report(), &inner.runner().graph_report());
      num = inner.metrics().num_steps;
    }),
              absl::OkStatus());
    return num;
  };
  const int64_t num_running = num_steps();
  EXPECT_GE(num_running, 3);
  ASSERT_TRUE(engine.Shutdown().ok());
  EXPECT_EQ(num_steps(), num_running);
}

// Run it under tsan, too.
TEST(AsyncEngineTest, InspectsBetweenStepsWhileTheEngineIsShutDown) {
  std::atomic<int> num_visits = 0;
  AsyncEngine engine(MakeEngine());
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener()).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_TRUE(engine
                        .Inspect([&](const Engine& inner) {
                          inner.scheduler().CheckInvariants();
                          EXPECT_GE(engine.metrics().num_steps, 0);  // no lock is held
                          ++num_visits;
                        })
                        .ok());
      }
    });
  }
  while (num_visits < 100) std::this_thread::yield();
  EXPECT_TRUE(engine.Shutdown().ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_visits, 800);
}

TEST(AsyncEngineTest, ListenersAndVisitorsMayCallInspect) {
  AsyncEngine engine(MakeEngine());
  std::atomic<int> num_visits = 0;
  Inbox inbox;
  ASSERT_TRUE(engine
                  .Add({.prompt = {1}, .max_new_tokens = 5},
                       [&](const TokenEvent& event) {
                         EXPECT_TRUE(engine.Inspect([&](const Engine&) { ++num_visits; }).ok());
                         inbox.Put(event);
                       })
                  .ok());
  inbox.WaitForEnd();
  EXPECT_EQ(num_visits, 5);
  const auto visit_twice = [&](const Engine&) {
    EXPECT_TRUE(engine.Inspect([&](const Engine&) { ++num_visits; }).ok());
  };
  EXPECT_TRUE(engine.Inspect(visit_twice).ok());
  ASSERT_TRUE(engine.Shutdown().ok());
  EXPECT_TRUE(engine.Inspect(visit_twice).ok());
  EXPECT_EQ(num_visits, 7);
}

TEST(AsyncEngineTest, ReturnsTheErrorOfAVisitorThatThrows) {
  AsyncEngine engine(MakeEngine());
  EXPECT_EQ(engine.Inspect([](const Engine&) { throw std::runtime_error("burnt"); }),
            absl::InternalError("the visitor threw an exception: burnt"));
  EXPECT_FALSE(engine.Inspect([](const Engine&) { throw 5; }).ok());
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().back().finish, FinishReason::kLength);
}

TEST(AsyncEngineTest, AcceptsAnInfiniteIdleInterval) {
  Puppet puppet = MakePuppet();
  AsyncEngine engine(std::move(puppet.engine), absl::InfiniteDuration());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1, 2}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().size(), 3u);
  EXPECT_EQ(puppet.runner->num_idles.load(), 0);
}

TEST(AsyncEngineTest, RunsRequestsFromManyThreads) {
  const SchedulerOptions options = Options();
  AsyncEngine engine(MakeEngine());
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

TEST(AsyncEngineTest, ReportsRefusedRequestsToTheListener) {
  AsyncEngine engine(MakeEngine());
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

// The inner engine numbers only accepted requests, so its ids differ.
TEST(AsyncEngineTest, EventsHaveTheIdThatAddReturned) {
  AsyncEngine engine(MakeEngine());
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
  AsyncEngine engine(MakeEngine());
  Inbox inbox;
  const auto id = engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener());
  ASSERT_TRUE(id.ok()) << id.status();
  inbox.WaitFor(5);
  engine.Cancel(*id);
  engine.Cancel(*id);               // no effect
  engine.Cancel(SequenceId(1000));  // no effect
  const std::vector<TokenEvent> events = inbox.WaitForEnd();
  EXPECT_TRUE(engine.Drain().ok());
  EXPECT_THAT(inbox.events(), SizeIs(events.size()));  // no event follows
  EXPECT_THAT(events.back().finish,
              testing::AnyOf(FinishReason::kCancelled, FinishReason::kLength));
}

TEST(AsyncEngineTest, AListenerMayAddAndCancel) {
  AsyncEngine engine(MakeEngine());
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

TEST(AsyncEngineTest, DrainAndShutdownFailInAListener) {
  AsyncEngine engine(MakeEngine());
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

TEST(AsyncEngineTest, DrainWaitsForRequestsAndRefusesLaterRequests) {
  AsyncEngine engine(MakeEngine());
  std::vector<Inbox> inboxes(9);
  for (Inbox& inbox : inboxes) {
    ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 20}, inbox.listener()).ok());
  }
  ASSERT_TRUE(engine.Drain().ok());
  for (Inbox& inbox : inboxes) EXPECT_EQ(TextOf(inbox.events()).finish, FinishReason::kLength);
  const auto late = engine.Add({.prompt = {1}}, [](const TokenEvent&) { FAIL(); });
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine.Drain().ok());  // may be repeated
}

TEST(AsyncEngineTest, ShutdownCancelsRunningAndWaitingRequests) {
  AsyncEngine engine(MakeEngine());
  std::vector<Inbox> inboxes(9);  // more than can run at the same time
  for (Inbox& inbox : inboxes) {
    ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, inbox.listener()).ok());
  }
  ASSERT_TRUE(engine.Shutdown().ok());
  for (Inbox& inbox : inboxes) {
    const std::vector<TokenEvent> events = inbox.events();
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().finish, FinishReason::kCancelled);
  }
  EXPECT_TRUE(absl::IsUnavailable(engine.Add({.prompt = {1}}, nullptr).status()));
  EXPECT_TRUE(engine.Shutdown().ok());  // may be repeated
  engine.Cancel(SequenceId(0));         // no effect
}

TEST(AsyncEngineTest, ShutdownCancelsEachSequenceOfAQueuedRequest) {
  AsyncEngine engine(MakeEngine());
  // The listener of the first request blocks the engine's thread until the shutdown has begun.
  std::promise<void> is_held;
  std::promise<void> is_stopping;
  Inbox held;
  ASSERT_TRUE(engine
                  .Add({.prompt = {1}, .max_new_tokens = kForever},
                       [&](const TokenEvent& event) {
                         held.Put(event);
                         if (event.index != 0) return;
                         is_held.set_value();
                         is_stopping.get_future().wait();
                       })
                  .ok());
  is_held.get_future().wait();
  Inbox several;
  const auto id = engine.Add({.prompt = {2}, .num_sequences = 3}, several.listener());
  ASSERT_TRUE(id.ok()) << id.status();
  Inbox wrong;
  ASSERT_TRUE(engine.Add({.prompt = {-5}, .num_sequences = 3}, wrong.listener()).ok());
  std::thread stopper([&] { EXPECT_TRUE(engine.Shutdown().ok()); });
  while (engine.Add({.prompt = {3}}, nullptr).ok()) std::this_thread::yield();
  is_stopping.set_value();
  stopper.join();
  EXPECT_EQ(held.events().back().finish, FinishReason::kCancelled);
  const std::vector<TokenEvent> events = several.events();
  ASSERT_THAT(events, SizeIs(3));
  for (int sample = 0; sample < 3; ++sample) {
    EXPECT_EQ(events[sample],
              (TokenEvent{.sequence = *id, .sample = sample, .finish = FinishReason::kCancelled}));
  }
  ASSERT_THAT(wrong.events(), SizeIs(1));
  EXPECT_EQ(wrong.events()[0].finish, FinishReason::kRefused);
  EXPECT_EQ(wrong.events()[0].error.code(), absl::StatusCode::kInvalidArgument);
}

TEST(AsyncEngineTest, AListenerIsDestroyedWithItsRequest) {
  AsyncEngine engine(MakeEngine());
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 3}, [owned](const TokenEvent&) {}).ok());
  owned.reset();
  ASSERT_TRUE(engine.Drain().ok());
  EXPECT_TRUE(watched.expired());
}

TEST(AsyncEngineTest, CancelsTheRequestOfAListenerThatThrows) {
  AsyncEngine engine(MakeEngine());
  const Request request = {.prompt = {1, 2}, .max_new_tokens = 200};
  Inbox spared;
  ASSERT_TRUE(engine.Add(request, spared.listener()).ok());
  for (const bool throws_integer : {false, true}) {
    std::atomic<int> num_events = 0;
    auto owned = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = owned;
    ASSERT_TRUE(engine
                    .Add({.prompt = {3}, .max_new_tokens = kForever, .num_sequences = 3},
                         [&num_events, throws_integer, owned](const TokenEvent&) {
                           if (++num_events < 8) return;
                           if (throws_integer) throw 5;
                           throw std::runtime_error("burnt");
                         })
                    .ok());
    owned.reset();
    while (engine.metrics().num_finished[static_cast<int>(FinishReason::kCancelled)] <
           (throws_integer ? 6 : 3)) {
      std::this_thread::yield();
    }
    EXPECT_EQ(num_events, 8);
    EXPECT_TRUE(watched.expired());
  }
  EXPECT_EQ(TextOf(spared.WaitForEnd()), ExpectedText(request, 0, Options(), kMaxSeqLen));
  EXPECT_TRUE(engine.Shutdown().ok());
  EXPECT_EQ(engine.metrics().num_blocks_used, 0);
}

TEST(AsyncEngineTest, SurvivesAListenerThatThrowsInTheLastEvent) {
  AsyncEngine engine(MakeEngine());
  const auto throw_at_end = [](const TokenEvent& event) {
    if (event.finish != FinishReason::kNone) throw std::runtime_error("burnt");
  };
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 3}, throw_at_end).ok());
  ASSERT_TRUE(engine.Add({.prompt = {-1}}, throw_at_end).ok());  // refused
  Inbox inbox;
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = 3}, inbox.listener()).ok());
  EXPECT_EQ(inbox.WaitForEnd().back().finish, FinishReason::kLength);
  ASSERT_TRUE(engine.Add({.prompt = {1}, .max_new_tokens = kForever}, throw_at_end).ok());
  EXPECT_TRUE(engine.Shutdown().ok());
}

TEST(AsyncEngineTest, EndsTheSequencesOfCallbacksThatThrow) {
  SchedulerOptions options = Options();
  options.shape.mask_words = static_cast<int>(MaskWords(kPuppetVocab));
  AsyncEngine engine(MakeEngine(options));
  Request matched = {.prompt = {1}, .max_new_tokens = 20};
  const PuppetText whole = ExpectedText(matched, 0, options, kMaxSeqLen);
  Inbox spared;
  ASSERT_TRUE(engine.Add(matched, spared.listener()).ok());
  matched.new_stop_matcher = ThrowingMatcher::Factory({.num_calls_before = 2});
  Inbox of_matcher;
  ASSERT_TRUE(engine.Add(matched, of_matcher.listener()).ok());
  Request masked = {.prompt = {1}, .max_new_tokens = 20};
  masked.new_token_masker =
      ThrowingMasker::Factory(/*seed=*/3, /*num_tokens=*/30, ThrowingMasker::In::kFill, {});
  Inbox of_masker;
  ASSERT_TRUE(engine.Add(masked, of_masker.listener()).ok());
  Request refused = {.prompt = {1}};
  refused.new_stop_matcher = []() -> std::unique_ptr<StopMatcher> { throw 5; };
  Inbox of_factory;
  ASSERT_TRUE(engine.Add(refused, of_factory.listener()).ok());
  EXPECT_EQ(of_matcher.WaitForEnd().back().error,
            absl::InternalError("StopMatcher::Ends() threw an exception: burnt"));
  EXPECT_EQ(of_masker.WaitForEnd().back().error,
            absl::InternalError("TokenMasker::Fill() threw an exception: burnt"));
  EXPECT_EQ(of_factory.WaitForEnd().back().finish, FinishReason::kRefused);
  EXPECT_EQ(TextOf(spared.WaitForEnd()), whole);
  EXPECT_TRUE(engine.Drain().ok());
}

TEST(AsyncEngineTest, FailedStepIsReportedAndOtherRequestsContinue) {
  Puppet puppet = MakePuppet();
  RemoteRunner& inner = *puppet.runner;
  AsyncEngine engine(std::move(puppet.engine));
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

TEST(AsyncEngineTest, DeadRunnerFailsAllRequestsAndRefusesLaterRequests) {
  Puppet puppet = MakePuppet();
  RemoteRunner& inner = *puppet.runner;
  AsyncEngine engine(std::move(puppet.engine));
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
    SchedulerOptions options = Options();
    options.shape.num_blocks = 60;  // preempts
    options.policy.max_waiting = 12;
    std::vector<Inbox> inboxes(60);
    {
      AsyncEngine engine(MakeEngine(options));
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
            if (!id.ok()) {  // drained or shut down
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
