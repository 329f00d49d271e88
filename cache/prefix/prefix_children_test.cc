#include "reprise/cache/prefix/prefix_children.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<BlockId> Newest(const PrefixChildren& children, uint64_t tag, int num_at_most = 8) {
  std::vector<BlockId> found(num_at_most);
  found.resize(children.FindNewest(tag, absl::MakeSpan(found)));
  return found;
}

TEST(PrefixChildrenTest, FindsTheNewestChildrenFirst) {
  PrefixChildren children(10);
  for (const int block : {3, 1, 7}) children.Add(BlockId(block), 42);
  EXPECT_THAT(Newest(children, 42), ElementsAre(BlockId(7), BlockId(1), BlockId(3)));
  EXPECT_THAT(Newest(children, 42, 2), ElementsAre(BlockId(7), BlockId(1)));
  EXPECT_THAT(Newest(children, 43), IsEmpty());
}

TEST(PrefixChildrenTest, RemovesChildrenFromAnyPosition) {
  for (const int removed : {1, 2, 3}) {
    PrefixChildren children(4);
    for (const int block : {1, 2, 3}) children.Add(BlockId(block), 5);
    children.Remove(BlockId(removed));
    EXPECT_FALSE(children.contains(BlockId(removed)));
    EXPECT_THAT(Newest(children, 5), testing::SizeIs(2));
    EXPECT_THAT(Newest(children, 5), testing::Not(testing::Contains(BlockId(removed))));
  }
}

TEST(PrefixChildrenTest, ReplacementKeepsThePosition) {
  PrefixChildren children(10);
  for (const int block : {1, 2, 3}) children.Add(BlockId(block), 5);
  children.Replace(BlockId(2), BlockId(9));
  EXPECT_THAT(Newest(children, 5), ElementsAre(BlockId(3), BlockId(9), BlockId(1)));
  children.Replace(BlockId(3), BlockId(2));  // the first child of its bucket
  EXPECT_THAT(Newest(children, 5), ElementsAre(BlockId(2), BlockId(9), BlockId(1)));
}

TEST(PrefixChildrenTest, LookupStopsAfterPassingManyOtherChildren) {
  PrefixChildren children(1000);
  children.Add(BlockId(1), 7);  // tags that differ in their low half share a bucket
  for (int block = 2; block < 1000; ++block) children.Add(BlockId(block), 8);
  EXPECT_THAT(Newest(children, 7, 2), IsEmpty());
  EXPECT_THAT(Newest(children, 8, 2), ElementsAre(BlockId(999), BlockId(998)));
}

TEST(PrefixChildrenTest, ListsWithoutBlocksHaveNoChildren) {
  PrefixChildren children(0);
  EXPECT_THAT(Newest(children, 7), IsEmpty());
  EXPECT_EQ(children.num_bytes(), 0);
  children.Clear();
}

TEST(PrefixChildrenTest, UsesTheDocumentedBytes) {
  EXPECT_EQ(PrefixChildren(100).num_bytes(), 100 * 20);
}

TEST(PrefixChildrenDeathTest, DiesOnInvalidCalls) {
  PrefixChildren children(4);
  children.Add(BlockId(1), 5);
  children.Add(BlockId(2), 5);
  EXPECT_DEATH(children.Add(BlockId(1), 6), "block 1 is a child already");
  EXPECT_DEATH(children.Remove(BlockId(3)), "block 3 is not a child");
  EXPECT_DEATH(children.Replace(BlockId(3), BlockId(1)), "block 3 is not a child");
  EXPECT_DEATH(children.Replace(BlockId(1), BlockId(2)), "block 2 is a child already");
}

TEST(PrefixChildrenTest, RandomCallsMatchAMap) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr int kNumBlocks = 64;
  PrefixChildren children(kNumBlocks);
  std::vector<uint64_t> tags(8);
  for (uint64_t& tag : tags) tag = random();
  std::map<uint64_t, std::vector<BlockId>> model;  // oldest first
  std::map<BlockId, uint64_t> tag_of;
  for (int step = 0; step < 20000; ++step) {
    const BlockId block(static_cast<int32_t>(1 + random() % (kNumBlocks - 1)));
    ASSERT_EQ(children.contains(block), tag_of.count(block) == 1);
    if (!tag_of.count(block)) {
      const uint64_t tag = tags[random() % tags.size()];
      children.Add(block, tag);
      model[tag].push_back(block);
      tag_of[block] = tag;
    } else {
      children.Remove(block);
      std::vector<BlockId>& siblings = model[tag_of[block]];
      siblings.erase(std::find(siblings.begin(), siblings.end(), block));
      tag_of.erase(block);
    }
    const uint64_t tag = tags[random() % tags.size()];
    std::vector<BlockId> expected(model[tag].rbegin(), model[tag].rend());
    ASSERT_EQ(Newest(children, tag, kNumBlocks), expected);
  }
}

}  // namespace
}  // namespace reprise
