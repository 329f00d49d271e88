// Callbacks, a clock and a runner that throw under an Engine. An exception of a callback ends only
// its own sequence.

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/testing/borrowed_runner.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_masker.h"
#include "reprise/engine/testing/puppet_runner.h"
#include "reprise/engine/testing/throwing_callbacks.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kMaskSeed = 3;
constexpr int kNumMasked = 30;  // more tokens than a request generates

SchedulerOptions Options() {
  return {.shape = {.max_num_seqs = 3,
                    .max_num_tokens = 8,
                    .max_seq_len = 64,
                    .max_steps_in_flight = 2,
                    .num_blocks = 60,
                    .block_size = 4,
                    .mask_words = static_cast<int>(MaskWords(kPuppetVocab))}};
}

class UserCodeTest : public testing::Test {
 protected:
  explicit UserCodeTest(const SchedulerOptions& options = Options())
      : options_(options), runner_(options) {
    clock_ = [this] { return now_; };
    auto engine = Engine::Create(
        Borrowed(runner_), {.scheduler = options_.policy, .clock = [this] { return clock_(); }});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  SequenceId Add(const Request& request) {
    const auto id = engine_->Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    requests_[*id] = request;
    return *id;
  }

  void Step() {
    now_ += absl::Seconds(1);
    std::vector<TokenEvent> events;
    EXPECT_EQ(engine_->Step(events), absl::OkStatus());
    engine_->scheduler().CheckInvariants();
    for (const TokenEvent& event : events) {
      EXPECT_EQ(event.index, static_cast<int>(texts_[event.sequence].tokens.size()));
      texts_[event.sequence].Add(event);
      if (!event.error.ok()) errors_[event.sequence] = event.error;
    }
  }

  void RunAll() {
    for (int i = 0; engine_->has_work(); ++i) {
      ASSERT_LT(i, 1000);
      Step();
    }
    EXPECT_EQ(engine_->scheduler().blocks().pool().num_used(), 0);
    EXPECT_EQ(engine_->scheduler().num_running(), 0);
  }

  // The request has the text that it has without other requests.
  void ExpectWhole(SequenceId id) {
    EXPECT_EQ(texts_[id], ExpectedText(requests_.at(id), 0, options_, 64)) << "sequence " << id;
  }

  // The sequence has ended with `error` after the first `num_tokens` tokens of request `as`.
  void ExpectBroken(SequenceId id, const Request& as, int num_tokens, const std::string& error) {
    PuppetText expected = ExpectedText(as, 0, options_, 64);
    expected.tokens.resize(num_tokens);
    expected.finish = FinishReason::kError;
    EXPECT_EQ(texts_[id], expected);
    EXPECT_EQ(errors_[id], absl::InternalError(error));
  }

  SchedulerOptions options_;
  absl::Time now_ = absl::UnixEpoch();
  std::function<absl::Time()> clock_;
  PuppetRunner runner_;
  std::unique_ptr<Engine> engine_;
  std::map<SequenceId, Request> requests_;
  std::map<SequenceId, PuppetText> texts_;
  std::map<SequenceId, absl::Status> errors_;
};

enum class Callback { kEnds, kFill, kAccept };

struct ThrowingCase {
  Callback callback;
  int num_tokens;  // before the exception
  int max_steps_in_flight;

  friend std::ostream& operator<<(std::ostream& out, const ThrowingCase& c) {
    return out << "callback " << static_cast<int>(c.callback) << ", " << c.num_tokens << " tokens, "
               << c.max_steps_in_flight << " steps in flight";
  }
};

class ThrowingCallbackTest : public UserCodeTest, public testing::WithParamInterface<ThrowingCase> {
 protected:
  ThrowingCallbackTest() : UserCodeTest(OptionsOfCase()) {}

  static SchedulerOptions OptionsOfCase() {
    SchedulerOptions options = Options();
    options.shape.max_steps_in_flight = GetParam().max_steps_in_flight;
    return options;
  }

  // The prompt takes at least two steps.
  static Request Plain() {
    Request request = {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, .max_new_tokens = 12};
    if (GetParam().callback != Callback::kEnds) {
      request.new_token_masker = PuppetMasker::Factory(kMaskSeed, kNumMasked);
    }
    return request;
  }

  static Request Throwing(bool throws_integer) {
    Request request = Plain();
    const Fuse fuse = {.num_calls_before = GetParam().num_tokens, .throws_integer = throws_integer};
    using In = ThrowingMasker::In;
    if (GetParam().callback == Callback::kEnds) {
      request.new_stop_matcher = ThrowingMatcher::Factory(fuse);
    } else {
      const In in = GetParam().callback == Callback::kFill ? In::kFill : In::kAccept;
      request.new_token_masker = ThrowingMasker::Factory(kMaskSeed, kNumMasked, in, fuse);
    }
    return request;
  }

  static std::string Name() {
    switch (GetParam().callback) {
      case Callback::kEnds:
        return "StopMatcher::Ends()";
      case Callback::kFill:
        return "TokenMasker::Fill()";
      case Callback::kAccept:
        return "TokenMasker::Accept()";
    }
    return "";
  }
};

TEST_P(ThrowingCallbackTest, EndsOnlyTheSequenceWithTheCallback) {
  const SequenceId a = Add({.prompt = {1}, .max_new_tokens = 9});
  const SequenceId b = Add(Throwing(/*throws_integer=*/false));
  const SequenceId c = Add({.prompt = {2, 3}, .max_new_tokens = 20});
  RunAll();
  ExpectBroken(b, Plain(), GetParam().num_tokens, Name() + " threw an exception: burnt");
  ExpectWhole(a);
  ExpectWhole(c);
}

TEST_P(ThrowingCallbackTest, EndsTheOnlySequence) {
  const SequenceId broken = Add(Throwing(/*throws_integer=*/true));
  RunAll();
  ExpectBroken(broken, Plain(), GetParam().num_tokens,
               Name() + " threw something that is not a std::exception");
  const SequenceId next = Add(Plain());  // finds the prefix of the broken one
  RunAll();
  ExpectWhole(next);
}

TEST_P(ThrowingCallbackTest, EndsOneOfTheSequencesOfARequest) {
  Request request = Plain();
  request.sampling = {.temperature = 1, .seed = 40};
  const Request plain = request;
  request.num_sequences = 3;
  int num_made = 0;
  const Request throwing = Throwing(/*throws_integer=*/false);
  if (throwing.new_stop_matcher) {
    request.new_stop_matcher = [&num_made, throwing]() -> std::unique_ptr<StopMatcher> {
      return num_made++ == 1 ? throwing.new_stop_matcher() : nullptr;
    };
  } else {
    request.new_token_masker = [&num_made, plain, throwing] {
      return num_made++ == 1 ? throwing.new_token_masker() : plain.new_token_masker();
    };
  }
  ASSERT_TRUE(engine_->Add(request).ok());
  std::vector<PuppetText> texts(3);
  for (int i = 0; engine_->has_work(); ++i) {
    ASSERT_LT(i, 1000);
    std::vector<TokenEvent> events;
    ASSERT_TRUE(engine_->Step(events).ok());
    engine_->scheduler().CheckInvariants();
    for (const TokenEvent& event : events) texts[event.sample].Add(event);
  }
  for (int sample = 0; sample < 3; ++sample) {
    PuppetText expected = ExpectedText(plain, sample, options_, 64);
    if (sample == 1) {
      expected.tokens.resize(GetParam().num_tokens);
      expected.finish = FinishReason::kError;
    }
    EXPECT_EQ(texts[sample], expected) << "sample " << sample;
  }
}

std::vector<ThrowingCase> ThrowingCases() {
  std::vector<ThrowingCase> cases;
  for (const Callback callback : {Callback::kEnds, Callback::kFill, Callback::kAccept}) {
    for (const int num_tokens : {0, 1, 4}) {
      for (const int max_steps_in_flight : {1, 2, 3}) {
        cases.push_back({callback, num_tokens, max_steps_in_flight});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ThrowingCallbackTest, testing::ValuesIn(ThrowingCases()));

TEST_F(UserCodeTest, AddReturnsTheErrorOfAFactoryThatThrows) {
  const SequenceId before = Add({.prompt = {1}, .max_new_tokens = 9});
  // The matchers of the first two sequences are made.
  int num_made = 0;
  Request request = {.prompt = {2}, .max_new_tokens = 5, .num_sequences = 3};
  request.new_stop_matcher = [&]() -> std::unique_ptr<StopMatcher> {
    if (num_made++ == 2) throw std::runtime_error("no grammar");
    return nullptr;
  };
  EXPECT_EQ(engine_->Add(request).status(),
            absl::InternalError("new_stop_matcher threw an exception: no grammar"));
  EXPECT_EQ(engine_->scheduler().num_waiting(), 1);
  Request masked = {.prompt = {3}, .max_new_tokens = 5};
  masked.new_token_masker = []() -> std::unique_ptr<TokenMasker> { throw 5; };
  EXPECT_EQ(engine_->Add(masked).status(),
            absl::InternalError("new_token_masker threw something that is not a std::exception"));
  EXPECT_EQ(engine_->scheduler().num_waiting(), 1);
  EXPECT_EQ(engine_->metrics().num_refused, 2);
  const SequenceId after = Add({.prompt = {4}, .max_new_tokens = 5});
  RunAll();
  ExpectWhole(before);
  ExpectWhole(after);
}

TEST_F(UserCodeTest, KeepsTheLastTimeIfTheClockThrows) {
  const SequenceId id =
      Add({.prompt = {1}, .max_new_tokens = 50, .deadline = now_ + absl::Seconds(5)});
  for (int i = 0; i < 3; ++i) Step();
  clock_ = []() -> absl::Time { throw std::runtime_error("no time"); };
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(texts_[id].finish, FinishReason::kNone);
  const SequenceId added = Add({.prompt = {2}, .max_new_tokens = 5});
  clock_ = [this] { return now_; };
  RunAll();
  EXPECT_EQ(texts_[id].finish, FinishReason::kDeadline);
  ExpectWhole(added);
}

TEST_F(UserCodeTest, TreatsAnExceptionOfLaunchAsARefusedBatch) {
  const SequenceId hit = Add({.prompt = {1}, .max_new_tokens = 9});
  runner_.next_launch_throws = true;
  Step();
  const SequenceId spared = Add({.prompt = {2}, .max_new_tokens = 9});
  RunAll();
  EXPECT_EQ(errors_[hit], absl::InternalError("no launch"));
  ExpectWhole(spared);
}

TEST_F(UserCodeTest, TreatsAnExceptionOfAwaitAsAFailedStep) {
  const SequenceId hit = Add({.prompt = {1}, .max_new_tokens = 9});
  runner_.next_await_throws = true;
  Step();
  const SequenceId spared = Add({.prompt = {2}, .max_new_tokens = 9});
  RunAll();
  EXPECT_EQ(errors_[hit], absl::InternalError("no await"));
  EXPECT_THAT(texts_[hit].tokens, IsEmpty());
  ExpectWhole(spared);
}

TEST_F(UserCodeTest, TreatsAnExceptionOfStatusAsTheEndOfTheRunner) {
  const SequenceId hit = Add({.prompt = {1}, .max_new_tokens = 9});
  runner_.is_broken = true;
  std::vector<TokenEvent> events;
  EXPECT_EQ(engine_->Step(events), absl::InternalError("no status"));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().sequence, hit);
  EXPECT_EQ(events.back().finish, FinishReason::kError);
  EXPECT_FALSE(engine_->has_work());
  EXPECT_EQ(engine_->Add({.prompt = {1}, .max_new_tokens = 9}).status(),
            absl::InternalError("no status"));
}

TEST_F(UserCodeTest, ReturnsAnExceptionOfIdle) {
  runner_.is_broken = true;
  EXPECT_EQ(engine_->Idle(), absl::InternalError("no idling"));
}

}  // namespace
}  // namespace reprise
