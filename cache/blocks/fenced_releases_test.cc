#include "reprise/cache/blocks/fenced_releases.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/fake_fence.h"
#include "reprise/cache/blocks/fence_queue.h"

namespace reprise {
namespace {

FencedReleases MakeReleases() {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 4; ++i) fences.push_back(std::make_unique<FakeFence>());
  return FencedReleases(*FenceQueue::Create(std::move(fences)), /*num_reserved=*/2);
}

TEST(FencedReleasesTest, ComeOutInOrderUpToTheTicketThatHasPassed) {
  FencedReleases releases = MakeReleases();
  releases.Push(BlockId(7), 1);
  releases.Push(BlockId(8), 1);
  releases.Push(BlockId(9), 3);
  EXPECT_EQ(releases.PopPassed(0), std::nullopt);
  EXPECT_EQ(releases.oldest_ticket(), 1);
  EXPECT_EQ(releases.PopPassed(2), BlockId(7));
  EXPECT_EQ(releases.PopPassed(2), BlockId(8));
  EXPECT_EQ(releases.PopPassed(2), std::nullopt);
  EXPECT_EQ(releases.oldest_ticket(), 3);
  EXPECT_EQ(releases.PopPassed(3), BlockId(9));
  EXPECT_EQ(releases.size(), 0);
  EXPECT_EQ(releases.PopPassed(100), std::nullopt);
}

TEST(FencedReleasesTest, ABlockMayWaitMoreThanOnce) {
  FencedReleases releases = MakeReleases();
  releases.Push(BlockId(5), 1);
  releases.Push(BlockId(5), 2);
  EXPECT_EQ(releases.block(0), BlockId(5));
  EXPECT_EQ(releases.block(1), BlockId(5));
  EXPECT_EQ(releases.PopPassed(1), BlockId(5));
  EXPECT_EQ(releases.PopPassed(1), std::nullopt);
}

TEST(FencedReleasesTest, AnOlderTicketBehindAYoungerWaitsForTheYounger) {
  FencedReleases releases = MakeReleases();
  releases.Push(BlockId(1), 5);
  releases.Push(BlockId(2), 4);
  EXPECT_EQ(releases.PopPassed(4), std::nullopt);
  EXPECT_EQ(releases.PopPassed(5), BlockId(1));
  EXPECT_EQ(releases.PopPassed(5), BlockId(2));
}

TEST(FencedReleasesTest, MoreThanWereReservedAreKeptToo) {
  FencedReleases releases = MakeReleases();
  for (int i = 1; i <= 100; ++i) releases.Push(BlockId(i), i);
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(releases.PopPassed(100), BlockId(i));
}

}  // namespace
}  // namespace reprise
