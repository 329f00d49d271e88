#include "reprise/distributed/timed_call.h"

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(TimedCallTest, ReturnsTheResultOfTheCall) {
  EXPECT_EQ(CallWithin<std::string>(absl::Seconds(60), [] { return std::string("here"); }), "here");
  const auto owned =
      CallWithin<std::unique_ptr<int>>(absl::Seconds(60), [] { return std::make_unique<int>(3); });
  ASSERT_TRUE(owned.has_value());
  EXPECT_EQ(**owned, 3);
}

TEST(TimedCallTest, ReturnsNullIfTheCallDoesNotReturn) {
  struct Gate {
    absl::Notification opens, returns;
  };
  const auto gate = std::make_shared<Gate>();
  const absl::Time begin = absl::Now();
  // The late result, which shares ownership of `gate`, is discarded.
  EXPECT_FALSE(CallWithin<std::shared_ptr<Gate>>(absl::Milliseconds(50), [gate] {
                 gate->opens.WaitForNotification();
                 gate->returns.Notify();
                 return gate;
               }).has_value());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(50));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  gate->opens.Notify();
  EXPECT_TRUE(gate->returns.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

}  // namespace
}  // namespace reprise
