#include "reprise/runner/speculation/draft_capability.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DraftCapabilityTest, RunnerWithoutSpeculationHasNoDrafts) {
  const DraftCapability capability = DraftCapabilityOf({}, /*heads_attend=*/false);
  EXPECT_EQ(capability.max_drafts, 0);
  EXPECT_EQ(capability.max_levels(), 0);
  EXPECT_EQ(capability.keys, DrafterKeys::kNone);
}

TEST(DraftCapabilityTest, ChainsHaveOneLevelPerDraft) {
  const DraftCapability capability =
      DraftCapabilityOf({.max_drafts = 5, .proposer = NgramProposer{}, .graph_num_drafts = {2, 5}},
                        /*heads_attend=*/false);
  EXPECT_EQ(capability.max_levels(), 5);
  EXPECT_TRUE(capability.has_proposer);
  EXPECT_FALSE(capability.has_trees);
  EXPECT_THAT(capability.level_drafts, IsEmpty());
  EXPECT_THAT(capability.graph_levels, ElementsAre(2, 5));
}

TEST(DraftCapabilityTest, NoProposerMeansTheCallerSuppliesDrafts) {
  EXPECT_FALSE(DraftCapabilityOf({.max_drafts = 5, .proposer = NoProposer{}},
                                 /*heads_attend=*/false)
                   .has_proposer);
}

// Nodes 1 and 2 follow the last token, nodes 3 and 4 follow node 1, and node 5 follows node 3.
TEST(DraftCapabilityTest, TreesReportDraftsPerLevel) {
  const DraftCapability capability = DraftCapabilityOf({.max_drafts = 5,
                                                        .shape = DraftShape::kTree,
                                                        .tree = {0, 0, 1, 1, 3},
                                                        .proposer = NgramProposer{},
                                                        .graph_num_drafts = {1, 2, 3, 5}},
                                                       /*heads_attend=*/false);
  EXPECT_TRUE(capability.has_trees);
  EXPECT_THAT(capability.level_drafts, ElementsAre(2, 4, 5));
  EXPECT_EQ(capability.max_levels(), 3);
  // 1 draft does not fill a level; 2 and 3 drafts fill one level; 5 drafts fill all levels.
  EXPECT_THAT(capability.graph_levels, ElementsAre(1, 3));
}

TEST(DraftCapabilityTest, LimitsLevelsOfChainsToTheLimitOfAllRunners) {
  EXPECT_EQ((DraftCapability{.max_drafts = 60}).max_levels(), kMaxDrafts);
}

TEST(DraftCapabilityTest, HeadsWithAttentionHaveAKvCache) {
  EXPECT_EQ(DraftCapabilityOf({.max_drafts = 2},
                              /*heads_attend=*/true)
                .keys,
            DrafterKeys::kOfTokens);
  EXPECT_EQ(DraftCapabilityOf({.max_drafts = 2},
                              /*heads_attend=*/false)
                .keys,
            DrafterKeys::kNone);
}

}  // namespace
}  // namespace reprise
