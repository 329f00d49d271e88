#include "reprise/cache/blocks/deferred_releases.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<BlockId> Released(DeferredReleases& releases, int64_t last_passed) {
  std::vector<BlockId> released;
  releases.ReleasePassed(last_passed, [&](BlockId block) { released.push_back(block); });
  return released;
}

TEST(DeferredReleasesTest, ReleasesBlocksInOrderUpToTheCompletedEvent) {
  DeferredReleases releases;
  releases.Push(BlockId(7), 1);
  releases.Push(BlockId(8), 1);
  releases.Push(BlockId(9), 3);
  EXPECT_THAT(Released(releases, 0), IsEmpty());
  EXPECT_EQ(releases.block(0), BlockId(7));
  EXPECT_THAT(Released(releases, 2), ElementsAre(BlockId(7), BlockId(8)));
  EXPECT_EQ(releases.size(), 1);
  EXPECT_THAT(Released(releases, 2), IsEmpty());
  EXPECT_THAT(Released(releases, 3), ElementsAre(BlockId(9)));
  EXPECT_EQ(releases.size(), 0);
  EXPECT_THAT(Released(releases, 100), IsEmpty());
}

TEST(DeferredReleasesTest, ABlockMayWaitForSeveralEvents) {
  DeferredReleases releases;
  releases.Push(BlockId(5), 1);
  releases.Push(BlockId(5), 2);
  EXPECT_THAT(Released(releases, 1), ElementsAre(BlockId(5)));
  EXPECT_THAT(Released(releases, 1), IsEmpty());
  EXPECT_THAT(Released(releases, 2), ElementsAre(BlockId(5)));
}

TEST(DeferredReleasesTest, OlderEventAfterANewerEventWaitsForTheNewerEvent) {
  DeferredReleases releases;
  releases.Push(BlockId(1), 5);
  releases.Push(BlockId(2), 4);
  EXPECT_THAT(Released(releases, 4), IsEmpty());
  EXPECT_THAT(Released(releases, 5), ElementsAre(BlockId(1), BlockId(2)));
}

}  // namespace
}  // namespace reprise
