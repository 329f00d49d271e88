#include "reprise/cache/blocks/pending_copies.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PendingCopiesTest, AreTakenOnce) {
  PendingCopies copies;
  EXPECT_TRUE(copies.empty());
  copies.Add(BlockId(1), BlockId(2));
  copies.Add(BlockId(1), BlockId(3));
  EXPECT_EQ(copies.NumFrom(BlockId(1)), 2);
  EXPECT_THAT(copies.Take(),
              ElementsAre(BlockCopy{.src = 1, .dst = 2}, BlockCopy{.src = 1, .dst = 3}));
  EXPECT_TRUE(copies.empty());
  EXPECT_THAT(copies.Take(), IsEmpty());
}

TEST(PendingCopiesTest, OriginOfADestinationIsItsSource) {
  PendingCopies copies;
  copies.Add(BlockId(1), BlockId(2));
  EXPECT_EQ(copies.Origin(BlockId(2)), BlockId(1));
  EXPECT_EQ(copies.Origin(BlockId(1)), BlockId(1));
  EXPECT_EQ(copies.Origin(BlockId(5)), BlockId(5));
  copies.Take();
  EXPECT_EQ(copies.Origin(BlockId(2)), BlockId(2));
}

TEST(PendingCopiesTest, DropRemovesADestination) {
  PendingCopies copies;
  copies.Add(BlockId(1), BlockId(2));
  copies.Add(BlockId(3), BlockId(4));
  EXPECT_EQ(copies.Drop(BlockId(2)), BlockId(1));
  EXPECT_EQ(copies.Drop(BlockId(2)), std::nullopt);
  EXPECT_EQ(copies.Drop(BlockId(3)), std::nullopt);  // a source
  EXPECT_THAT(copies.pending(), ElementsAre(BlockCopy{.src = 3, .dst = 4}));
}

}  // namespace
}  // namespace reprise
