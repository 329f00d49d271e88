#include "reprise/distributed/process_group.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/collectives_suite.h"
#include "reprise/distributed/testing/rank_reports.h"

namespace reprise {
namespace {

class ProcessGroupTest : public ::testing::TestWithParam<int> {};

TEST_P(ProcessGroupTest, EveryCollectiveMatchesPlainSums) {
  const RankReports reports(GetParam(), [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, at::kCPU));
    EXPECT_EQ(ranks->ranks(), place.ranks);
    REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*ranks, at::kCPU));
    REPRISE_RETURN_IF_ERROR(ExpectEqualBitsOnAllRanks(*ranks, at::kCPU));
    if (place.ranks.world > 1) {
      REPRISE_RETURN_IF_ERROR(ExpectRefusalsToChangeNothing(*ranks, at::kCPU));
    }
    return ranks->status();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

TEST_P(ProcessGroupTest, BarrierBlocksUntilAllRanksCallIt) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/";
  const RankReports reports(GetParam(), [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, at::kCPU));
    const auto [rank, world] = place.ranks;
    for (int round = 0; round < 5; ++round) {
      // A different rank is late in each round.
      if (rank == round % world) absl::SleepFor(absl::Milliseconds(50));
      std::ofstream(absl::StrCat(folder, world, "-", round, "-", rank)) << "x";
      REPRISE_RETURN_IF_ERROR(ranks->Barrier());
      for (int other = 0; other < world; ++other) {
        EXPECT_TRUE(std::ifstream(absl::StrCat(folder, world, "-", round, "-", other)).good());
      }
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

TEST_P(ProcessGroupTest, RanksConnectOverTcpAndReconnectAfterARestart) {
  const std::string store = absl::StrCat("tcp:127.0.0.1:", FreePort());
  const RankReports reports(GetParam(), [&](const RankPlace& forked) -> absl::Status {
    RankPlace place = forked;
    place.store = store;
    place.serves_store = place.ranks.rank == 0;
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, at::kCPU));
    place.run = "second";
    place.serves_store = false;
    REPRISE_ASSIGN_OR_RETURN(auto again, ConnectRanks(place, at::kCPU));
    for (Collectives* group : {ranks.get(), again.get()}) {
      at::Tensor one = at::ones({5});
      REPRISE_RETURN_IF_ERROR(group->AllReduce(one));
      EXPECT_TRUE(one.equal(at::full({5}, static_cast<float>(place.ranks.world))));
    }
    return ranks->Barrier();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessGroupTest, ::testing::Values(1, 2, 4));

TEST(ConnectRanksTest, RejectsInvalidPlacesAndDevices) {
  const auto message = [](const RankPlace& place, at::Device device) {
    const auto ranks = ConnectRanks(place, device);
    EXPECT_EQ(ranks.status().code(), absl::StatusCode::kInvalidArgument) << ranks.status();
    return std::string(ranks.status().message());
  };
  using ::testing::HasSubstr;
  const RankPlace second = {.ranks = {.rank = 2, .world = 2}, .store = "file:/x", .run = ""};
  EXPECT_THAT(message(second, at::kCPU), HasSubstr("place must have 0 <= rank < world"));
  EXPECT_THAT(message({}, at::kMeta), HasSubstr("device must be"));
  for (const char* store : {"", "udp:a:1", "tcp:a", "tcp:a:b", "tcp:a:0", "tcp:a:99999"}) {
    const RankPlace place = {.ranks = {.rank = 0, .world = 2}, .store = store, .run = ""};
    EXPECT_THAT(message(place, at::kCPU), HasSubstr("store must be")) << store;
  }
}

}  // namespace
}  // namespace reprise
