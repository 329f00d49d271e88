#include "reprise/attention/speculation/tree_check.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

std::string Refusal(const std::vector<int32_t>& parents) {
  const absl::Status status = CheckTree(parents);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(TreeCheckTest, MasksContainThePathsOfNodes) {
  const absl::StatusOr<std::vector<uint64_t>> masks =
      TreeMasks(std::vector<int32_t>{-1, 0, 0, 1, 2});
  ASSERT_TRUE(masks.ok()) << masks.status();
  EXPECT_THAT(*masks, ElementsAre(0b1, 0b11, 0b101, 0b1011, 0b10101));
  EXPECT_EQ(NodePosition(10, (*masks)[0]), 10);
  EXPECT_EQ(NodePosition(10, (*masks)[4]), 12);
}

TEST(TreeCheckTest, ChainOf64NodesFillsTheMask) {
  std::vector<int32_t> parents(64);
  for (int node = 0; node < 64; ++node) parents[node] = node - 1;
  const absl::StatusOr<std::vector<uint64_t>> masks = TreeMasks(parents);
  ASSERT_TRUE(masks.ok()) << masks.status();
  EXPECT_EQ(masks->back(), ~uint64_t{0});
  EXPECT_EQ(NodePosition(0, masks->back()), 63);
  parents.push_back(63);
  EXPECT_EQ(Refusal(parents), "num_nodes: expected 1 to 64, got 65");
}

TEST(TreeCheckTest, RejectsParentsThatDoNotFormATree) {
  EXPECT_EQ(Refusal({}), "num_nodes: expected 1 to 64, got 0");
  EXPECT_EQ(Refusal({-1, 0, 3}), "parents[2]: expected -1 to 2, got 3");
  EXPECT_EQ(Refusal({-1, -2}), "parents[1]: expected -1 to 1, got -2");
  EXPECT_EQ(Refusal({-1, 1}), "parents: expected a tree, got a cycle through nodes 1");
  EXPECT_EQ(Refusal({-1, 0, 4, 2, 3}),
            "parents: expected a tree, got a cycle through nodes 2, 4, 3");
  EXPECT_EQ(Refusal({-1, 2, 0}),
            "parents[1]: expected -1 to 0 (a parent comes before its children), got 2");
  // The path of node 1 leads into a cycle that does not include node 1.
  EXPECT_EQ(Refusal({-1, 2, 3, 2}),
            "parents[1]: expected -1 to 0 (a parent comes before its children), got 2");
}

TEST(TreeCheckTest, AcceptsRandomTreesAndReturnsTheirMasks) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const std::vector<int32_t> parents = DrawTree(random, random.Int(1, 64));
    const AllocationCounter allocations;
    ASSERT_TRUE(CheckTree(parents).ok()) << "seed " << seed;
    ASSERT_EQ(allocations.count(), 0);
    const absl::StatusOr<std::vector<uint64_t>> masks = TreeMasks(parents);
    for (size_t node = 0; node < parents.size(); ++node) {
      const uint64_t above = parents[node] < 0 ? 0 : (*masks)[parents[node]];
      ASSERT_EQ((*masks)[node], above | uint64_t{1} << node) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace reprise
