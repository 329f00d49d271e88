#include "reprise/cache/prefix/prefix_events.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

PrefixEvent EventOf(int block) { return {.block = BlockId(block), .num_tokens = 16}; }

TEST(PrefixEventsTest, AreTakenOnceInOrder) {
  PrefixEventQueue queue(4);
  queue.Push(EventOf(1));
  queue.Push(EventOf(2));
  PrefixEvents taken = queue.Take();
  EXPECT_THAT(taken.events, ElementsAre(EventOf(1), EventOf(2)));
  EXPECT_EQ(taken.num_lost, 0);
  EXPECT_THAT(queue.Take().events, IsEmpty());
}

TEST(PrefixEventsTest, TakenEventsStayValidWhileEventsAreAdded) {
  PrefixEventQueue queue(4);
  queue.Push(EventOf(1));
  const PrefixEvents taken = queue.Take();
  queue.Push(EventOf(2));
  EXPECT_THAT(taken.events, ElementsAre(EventOf(1)));
  EXPECT_THAT(queue.Take().events, ElementsAre(EventOf(2)));
}

TEST(PrefixEventsTest, LostEventsAreCountedAfterTheKeptEvents) {
  PrefixEventQueue queue(2);
  for (int i = 1; i <= 5; ++i) queue.Push(EventOf(i));
  const PrefixEvents taken = queue.Take();
  EXPECT_THAT(taken.events, ElementsAre(EventOf(1), EventOf(2)));
  EXPECT_EQ(taken.num_lost, 3);
  queue.Push(EventOf(6));  // the queue has space again
  const PrefixEvents later = queue.Take();
  EXPECT_THAT(later.events, ElementsAre(EventOf(6)));
  EXPECT_EQ(later.num_lost, 0);
}

TEST(PrefixEventsTest, QueueOfSizeZeroKeepsAndLosesNoEvents) {
  PrefixEventQueue queue(0);
  queue.Push(EventOf(1));
  EXPECT_THAT(queue.Take().events, IsEmpty());
  EXPECT_EQ(queue.Take().num_lost, 0);
  EXPECT_EQ(queue.num_bytes(), 0);
}

TEST(PrefixEventsTest, PushAndTakeDoNotAllocate) {
  PrefixEventQueue queue(8);
  const AllocationCounter allocations;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < i % 12; ++k) queue.Push(EventOf(k));
    queue.Take();
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(PrefixEventsTest, EventUsesTheDocumentedBytes) {
  EXPECT_EQ(PrefixEventQueue(10).num_bytes(), 10 * 96);
}

}  // namespace
}  // namespace reprise
