// Tests the groups of a grid of processes: their results, and the failures that all ranks report.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/testing/collectives_suite.h"
#include "reprise/distributed/testing/rank_reports.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

const ConnectOptions kQuick = {.timeout = absl::Seconds(3), .grace = absl::Seconds(1)};

TEST(RankGridProcessTest, EveryGroupMatchesPlainSums) {
  const RankReports reports(4, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const auto grid, ConnectGrid(place, at::kCPU, /*context_ranks=*/2));
    EXPECT_EQ(grid->all().ranks(), place.ranks);
    const GridCoordinates expected = CoordinatesInGrid(place.ranks, 2);
    EXPECT_EQ(grid->weights().ranks(), expected.weights);
    EXPECT_EQ(grid->context().ranks(), expected.context);
    for (Collectives* group : {&grid->context(), &grid->all(), &grid->weights()}) {
      REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*group, at::kCPU));
      REPRISE_RETURN_IF_ERROR(ExpectRefusalsToChangeNothing(*group, at::kCPU));
    }
    // Sums must contain exactly the ranks of the group.
    at::Tensor weights = at::full({1}, 1 << place.ranks.rank);
    at::Tensor context = weights.clone();
    REPRISE_RETURN_IF_ERROR(grid->weights().AllReduce(weights));
    REPRISE_RETURN_IF_ERROR(grid->context().AllReduce(context));
    EXPECT_EQ(weights.item<int>(), place.ranks.rank < 2 ? 0b0011 : 0b1100);
    EXPECT_EQ(context.item<int>(), place.ranks.rank % 2 == 0 ? 0b0101 : 0b1010);
    return grid->all().status();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

TEST(RankGridProcessTest, GridWithOneDimensionCreatesNoSubgroups) {
  for (const int context_ranks : {1, 2}) {
    const RankReports reports(2, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const auto grid, ConnectGrid(place, at::kCPU, context_ranks));
      EXPECT_EQ(&grid->weights() == &grid->all(), context_ranks == 1);
      EXPECT_EQ(&grid->context() == &grid->all(), context_ranks == 2);
      return ExpectPlainResults(context_ranks == 1 ? grid->weights() : grid->context(), at::kCPU);
    });
    EXPECT_TRUE(reports.ok()) << reports.text();
  }
}

TEST(RankGridProcessTest, RejectsInvalidAndDifferentGrids) {
  const RankPlace place = {.ranks = {.rank = 0, .world = 4}, .store = "file:/x", .run = ""};
  const auto none = ConnectGrid(place, at::kCPU, 3);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument) << none.status();
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("context_ranks must divide"));
  const RankReports reports(4, [](const RankPlace& other) {
    return ConnectGrid(other, at::kCPU, other.ranks.rank == 3 ? 4 : 2, kQuick).status();
  });
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(reports.of(rank).has_value()) << rank;
    EXPECT_EQ(reports.of(rank)->code(), absl::StatusCode::kFailedPrecondition) << *reports.of(rank);
    EXPECT_THAT(std::string(reports.of(rank)->message()), HasSubstr("context_ranks 4"));
  }
}

// Repeats the collectives of a step: sums in the weights group, gathers in the context group, and a
// broadcast from rank 0 to all ranks.
absl::Status StepUntilFailure(RankGrid& grid, int steps) {
  for (int step = 0; step < steps; ++step) {
    at::Tensor batch = at::ones({10});
    REPRISE_RETURN_IF_ERROR(grid.all().Broadcast(batch, 0));
    for (int layer = 0; layer < 3; ++layer) {
      at::Tensor sums = at::ones({100});
      REPRISE_RETURN_IF_ERROR(grid.weights().AllReduce(sums));
      at::Tensor parts = at::zeros({grid.context().ranks().world, 100});
      REPRISE_RETURN_IF_ERROR(grid.context().AllGather(sums, parts));
    }
  }
  return absl::OkStatus();
}

absl::Status FailureOf(RankGrid& grid) {
  const absl::Status failure = StepUntilFailure(grid, 5);
  EXPECT_FALSE(failure.ok());
  for (Collectives* group : {&grid.all(), &grid.weights(), &grid.context()}) {
    EXPECT_EQ(group->status(), failure) << "no group may be usable any more";
    EXPECT_EQ(group->Barrier(), failure);
  }
  return failure;
}

// Runs with a file store, which outlives every rank, and with a TCP store, which rank 0 serves.
class RankGridFaultTest : public ::testing::TestWithParam<bool> {
 protected:
  absl::StatusOr<std::unique_ptr<RankGrid>> Connect(RankPlace place) {
    if (GetParam()) {
      place.store = absl::StrCat("tcp:127.0.0.1:", port_);
      place.serves_store = place.ranks.rank == 0;
    }
    return ConnectGrid(place, at::kCPU, /*context_ranks=*/2, kQuick);
  }

  static void ExpectNamed(const RankReports& reports, int victim, absl::StatusCode code,
                          const std::string& text) {
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim) continue;
      ASSERT_TRUE(reports.of(rank).has_value()) << "rank " << rank << " did not return";
      EXPECT_EQ(reports.of(rank)->code(), code) << *reports.of(rank);
      EXPECT_THAT(std::string(reports.of(rank)->message()),
                  HasSubstr(absl::StrCat("rank ", victim, " (process ")))
          << "rank " << rank;
      EXPECT_THAT(std::string(reports.of(rank)->message()), HasSubstr(text)) << "rank " << rank;
    }
  }

  const int port_ = FreePort();
};

INSTANTIATE_TEST_SUITE_P(Stores, RankGridFaultTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "File"; });

// Includes the rank that shares only the group of all ranks with the victim. All fail before the
// timeout.
TEST_P(RankGridFaultTest, AllRanksNameAKilledRank) {
  for (const int victim : {1, 3}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim));
    const RankReports reports(4, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const auto grid, Connect(place));
      REPRISE_RETURN_IF_ERROR(StepUntilFailure(*grid, 3));
      if (place.ranks.rank == victim) raise(SIGKILL);
      const absl::Time begin = absl::Now();
      const absl::Status failure = FailureOf(*grid);
      EXPECT_LT(absl::Now() - begin, kQuick.timeout);
      return failure;
    });
    ExpectNamed(reports, victim, absl::StatusCode::kUnavailable, "has ended");
  }
}

TEST_P(RankGridFaultTest, AllRanksNameARankThatHangs) {
  for (const int victim : {1, 2}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim));
    const RankReports reports(
        4,
        [&](const RankPlace& place) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(const auto grid, Connect(place));
          REPRISE_RETURN_IF_ERROR(StepUntilFailure(*grid, 3));
          if (place.ranks.rank == victim) HangUntilOthersReturn();
          return FailureOf(*grid);
        },
        absl::Seconds(30));
    ExpectNamed(reports, victim, absl::StatusCode::kDeadlineExceeded, "did not reach");
    EXPECT_LT(reports.took(), absl::Seconds(10));
  }
}

TEST_P(RankGridFaultTest, AllRanksReturnTheReasonOfFail) {
  const RankReports reports(4, [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const auto grid, Connect(place));
    REPRISE_RETURN_IF_ERROR(StepUntilFailure(*grid, 3));
    if (place.ranks.rank == 2) {
      const absl::Status why = absl::NotFoundError("model.safetensors was not found");
      grid->weights().Fail(why);
      EXPECT_EQ(grid->all().status(), why);
      EXPECT_EQ(grid->context().status(), why);
      absl::SleepFor(absl::Seconds(4));
      return why;
    }
    return FailureOf(*grid);
  });
  ExpectNamed(reports, 2, absl::StatusCode::kUnavailable, "model.safetensors was not found");
}

}  // namespace
}  // namespace reprise
