#include "reprise/distributed/rank_grid.h"

#include <ATen/ops/full.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"

namespace reprise {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CheckGridTest, ContextRanksDivideTheWorld) {
  for (const int context_ranks : {1, 2, 3, 6}) EXPECT_TRUE(CheckGrid(6, context_ranks).ok());
  EXPECT_TRUE(CheckGrid(1, 1).ok());
  for (const int context_ranks : {-1, 0, 4, 5, 12}) {
    const absl::Status status = CheckGrid(6, context_ranks);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("context_ranks must divide the number of ranks, 6"));
  }
}

TEST(CoordinatesInGridTest, NeighbouringRanksShardWeights) {
  const Ranks third = {.rank = 3, .world = 6};
  EXPECT_EQ(CoordinatesInGrid(third, 2), (GridCoordinates{.weights = {0, 3}, .context = {1, 2}}));
  EXPECT_THAT(WeightsGroup(third, 2), ElementsAre(3, 4, 5));
  EXPECT_THAT(ContextGroup(third, 2), ElementsAre(0, 3));
  EXPECT_EQ(CoordinatesInGrid(third, 3), (GridCoordinates{.weights = {1, 2}, .context = {1, 3}}));
  EXPECT_THAT(WeightsGroup(third, 3), ElementsAre(2, 3));
  EXPECT_THAT(ContextGroup(third, 3), ElementsAre(1, 3, 5));
}

TEST(CoordinatesInGridTest, GridWithOneDimensionHasAllRanksInIt) {
  const Ranks last = {.rank = 3, .world = 4};
  EXPECT_EQ(CoordinatesInGrid(last, 1), (GridCoordinates{.weights = last, .context = {0, 1}}));
  EXPECT_EQ(CoordinatesInGrid(last, 4), (GridCoordinates{.weights = {0, 1}, .context = last}));
  EXPECT_THAT(WeightsGroup(last, 4), ElementsAre(3));
  EXPECT_THAT(ContextGroup(last, 4), ElementsAre(0, 1, 2, 3));
}

// In both groups, a rank's coordinate equals its index in the list of members.
TEST(CoordinatesInGridTest, GroupsMatchPlaces) {
  for (const int context_ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < 8; ++rank) {
      const Ranks all = {.rank = rank, .world = 8};
      const GridCoordinates place = CoordinatesInGrid(all, context_ranks);
      EXPECT_EQ(WeightsGroup(all, context_ranks).at(place.weights.rank), rank);
      EXPECT_EQ(ContextGroup(all, context_ranks).at(place.context.rank), rank);
    }
  }
}

TEST(RankGridTest, EachGroupSumsOverItsRanks) {
  for (const int context_ranks : {1, 2, 4}) {
    const std::vector<absl::Status> results =
        RunThreadGrid(4, context_ranks, [&](RankGrid& grid) -> absl::Status {
          const Ranks all = grid.all().ranks();
          const GridCoordinates place = CoordinatesInGrid(all, context_ranks);
          EXPECT_EQ(grid.weights().ranks(), place.weights);
          EXPECT_EQ(grid.context().ranks(), place.context);
          const auto sum = [&](Collectives& group,
                               const std::vector<int>& members) -> absl::Status {
            at::Tensor tensor = at::full({3}, 1 << all.rank);
            REPRISE_RETURN_IF_ERROR(group.AllReduce(tensor));
            int expected = 0;
            for (const int member : members) expected += 1 << member;
            EXPECT_TRUE(tensor.equal(at::full({3}, expected))) << tensor;
            return absl::OkStatus();
          };
          REPRISE_RETURN_IF_ERROR(sum(grid.weights(), WeightsGroup(all, context_ranks)));
          REPRISE_RETURN_IF_ERROR(sum(grid.context(), ContextGroup(all, context_ranks)));
          return sum(grid.all(), {0, 1, 2, 3});
        });
    EXPECT_THAT(results, Each(absl::OkStatus())) << context_ranks;
  }
}

}  // namespace
}  // namespace reprise
