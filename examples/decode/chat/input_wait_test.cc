#include "examples/decode/chat/input_wait.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/decode/chat/input_lines.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using Event = InputWait::Event;

class InputWaitTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(ends_.data()), 0); }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Write() { ASSERT_EQ(write(ends_[1], "\n", 1), 1); }
  void Read() {
    char byte;
    ASSERT_EQ(read(ends_[0], &byte, 1), 1);
  }
  // Counts its calls, and fails from the `failing`th on.
  IdleCall Counted(int failing = 1'000'000) {
    return {.call = [this, failing]() -> absl::Status {
              return ++num_calls_ < failing ? absl::OkStatus()
                                            : absl::UnavailableError("a rank has ended");
            },
            .interval = absl::Milliseconds(30)};
  }

  std::array<int, 2> ends_;
  SignalEvent interrupt_{{SIGINT}};
  int num_calls_ = 0;
};

TEST_F(InputWaitTest, CallsUntilInputComes) {
  InputWait wait(ends_[0], interrupt_, Counted());
  std::thread later([this] {
    absl::SleepFor(absl::Milliseconds(400));
    Write();
  });
  EXPECT_EQ(wait.Next(), Event::kInput);
  later.join();
  EXPECT_GE(num_calls_, 3);
  raise(SIGINT);
  EXPECT_EQ(wait.Next(), Event::kInterrupted);
  EXPECT_TRUE(wait.status().ok());
}

TEST_F(InputWaitTest, CallsAlsoWhileInputComesMoreOftenThanThat) {
  InputWait wait(ends_[0], interrupt_, Counted());
  const absl::Time end = absl::Now() + absl::Milliseconds(400);
  while (absl::Now() < end) {
    Write();
    EXPECT_EQ(wait.Next(), Event::kInput);
    Read();
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_GE(num_calls_, 3);
}

TEST_F(InputWaitTest, ACallThatFailsEndsAllWaits) {
  InputWait wait(ends_[0], interrupt_, Counted(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(wait.Next(), Event::kFailed);
    EXPECT_EQ(wait.status(), absl::UnavailableError("a rank has ended"));
    Write();
  }
  EXPECT_EQ(num_calls_, 2);
}

TEST_F(InputWaitTest, ACallThatFailsIsTheResultOfALine) {
  InputLines lines(ends_[0], interrupt_, Counted(2));
  const InputLines::Result line = lines.Next();
  EXPECT_EQ(line.kind, InputLines::Kind::kFailed);
  EXPECT_EQ(line.error, absl::UnavailableError("a rank has ended"));
}

TEST_F(InputWaitTest, NoCallIsNeeded) {
  InputWait wait(ends_[0], interrupt_, {});
  Write();
  EXPECT_EQ(wait.Next(), Event::kInput);
  close(ends_[0]);
  EXPECT_EQ(wait.Next(), Event::kInput);  // reading tells what is wrong
  ends_[0] = dup(ends_[1]);
}

}  // namespace
}  // namespace reprise
