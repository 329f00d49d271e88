#include "reprise/runner/speculation/draft_levels.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DraftLevelsTest, TreeOfWidthsExpandsEachLevel) {
  EXPECT_THAT(*TreeOfWidths({2, 1}, 3), ElementsAre(0, 0, 1, 2, 3, 4));
  EXPECT_THAT(*TreeOfWidths({3}, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(*TreeOfWidths({1}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*TreeOfWidths({2, 3}, 2), ElementsAre(0, 0, 1, 1, 1, 2, 2, 2));
  EXPECT_EQ(TreeOfWidths({4, 2, 1, 1, 1, 1, 1, 1}, 8)->size(), 60);
}

TEST(DraftLevelsTest, RejectsWidthsThatMakeNoTree) {
  const auto message = [](const std::vector<int>& widths, int depth) {
    return std::string(TreeOfWidths(widths, depth).status().message());
  };
  EXPECT_THAT(message({2}, 0), HasSubstr("depth of a draft tree: expected 1 to 16, got 0"));
  EXPECT_THAT(message({2}, 17), HasSubstr("got 17"));
  EXPECT_THAT(message({}, 2), HasSubstr("number of widths of a draft tree: expected 1 to 2"));
  EXPECT_THAT(message({1, 1, 1}, 2), HasSubstr("got 3"));
  EXPECT_THAT(message({2, 0}, 2), HasSubstr("width of a level of a draft tree"));
  EXPECT_THAT(message({63, 2}, 2), HasSubstr("number of drafts of a draft tree"));
  EXPECT_THAT(message({1000000000}, 1), HasSubstr("width of a level"));
}

TEST(DraftLevelsTest, FindsLevelsAndChildIndicesOfNodes) {
  const std::vector<int> tree = {0, 0, 1, 2, 1, 3, 5};
  const DraftLevels levels = LevelsOf(tree, 7);
  EXPECT_TRUE(levels.is_tree);
  EXPECT_THAT(levels.first, ElementsAre(0, 1, 3, 6, 8));
  EXPECT_THAT(levels.num_ranks, ElementsAre(2, 2, 1));
  EXPECT_EQ(levels.max_width(), 3);
  EXPECT_THAT(RanksOf(tree), ElementsAre(0, 1, 0, 0, 1, 0, 0));
  // The first drafts of a tree form a tree.
  EXPECT_THAT(LevelsOf(tree, 4).first, ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(LevelsOf(tree, 4).num_ranks, ElementsAre(2, 1));
  EXPECT_EQ(LevelsOf(tree, 1).max_width(), 1);
}

TEST(DraftLevelsTest, AChainHasALevelForEachDraft) {
  const DraftLevels levels = LevelsOf({}, 3);
  EXPECT_FALSE(levels.is_tree);
  EXPECT_THAT(levels.first, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(levels.num_ranks, ElementsAre(1, 1, 1));
  EXPECT_EQ(LevelsOf({}, 0).num_levels(), 0);
}

TEST(DraftLevelsTest, RejectsListsThatAreNotTrees) {
  const auto message = [](const std::vector<int>& tree) {
    return std::string(CheckDraftTree(tree).message());
  };
  EXPECT_EQ(message({0, 0, 1}), "");
  EXPECT_THAT(message({}), HasSubstr("number of entries of speculation.tree"));
  EXPECT_THAT(message(std::vector<int>(64, 0)), HasSubstr("expected 1 to 63, got 64"));
  EXPECT_THAT(message({0, 2}), HasSubstr("speculation.tree[1]: expected 0 to 1, got 2"));
  EXPECT_THAT(message({-1}), HasSubstr("speculation.tree[0]"));
  EXPECT_THAT(message({0, 1, 0}), HasSubstr("expected a depth of at least 2 of draft 2, got 1"));
  std::vector<int> chain;
  for (int i = 0; i < 17; ++i) chain.push_back(i);
  EXPECT_THAT(message(chain), HasSubstr("depth of speculation.tree: expected 1 to 16, got 17"));
}

}  // namespace
}  // namespace reprise
