#include "examples/decode/signal_event.h"

#include <poll.h>

#include "gtest/gtest.h"

namespace reprise {
namespace {

bool IsReadable(int descriptor) {
  pollfd waited = {.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&waited, 1, 0) == 1;
}

TEST(SignalEventTest, ASignalIsTakenOnce) {
  SignalEvent event({SIGINT, SIGTERM});
  EXPECT_FALSE(event.Take());
  EXPECT_FALSE(IsReadable(event.descriptor()));
  raise(SIGINT);
  raise(SIGTERM);
  EXPECT_TRUE(IsReadable(event.descriptor()));
  EXPECT_TRUE(event.Take());
  EXPECT_FALSE(event.Take());
  EXPECT_FALSE(IsReadable(event.descriptor()));
}

TEST(SignalEventTest, AfterwardsSignalsDoWhatTheyDidBefore) {
  { const SignalEvent event({SIGINT}); }
  EXPECT_EXIT(raise(SIGINT), testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace reprise
