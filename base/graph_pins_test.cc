#include "reprise/base/graph_pins.h"

#include <functional>
#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(GraphPinsTest, CountsPinsAndTheirCopiesOnce) {
  GraphPins pins;
  EXPECT_TRUE(pins.CheckNone("workspace").ok());
  GraphPins::Pin a = pins.Take();
  const GraphPins::Pin copy = a;
  GraphPins::Pin b = pins.Take();
  EXPECT_EQ(pins.count(), 2);
  EXPECT_EQ(pins.CheckNone("workspace"),
            absl::FailedPreconditionError(
                "workspace must stay while captured graphs use it: expected 0 graphs, got 2"));
  b.reset();
  a.reset();
  EXPECT_EQ(pins.count(), 1);  // held by the copy
}

TEST(GraphPinsTest, RecordedCallHoldsThePinUntilDestroyed) {
  GraphPins pins;
  std::function<void()> recorded = [pin = pins.Take()] {};
  std::function<void()> clone = recorded;
  EXPECT_EQ(pins.count(), 1);
  recorded = nullptr;
  EXPECT_FALSE(pins.CheckNone("workspace").ok());
  clone = nullptr;
  EXPECT_TRUE(pins.CheckNone("workspace").ok());
}

TEST(GraphPinsTest, PinMayOutliveTheGraphPins) {
  std::optional<GraphPins> pins(std::in_place);
  const GraphPins::Pin pin = pins->Take();
  pins.reset();
}

}  // namespace
}  // namespace reprise
