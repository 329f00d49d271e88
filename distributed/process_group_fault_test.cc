// Tests of failing ranks: the other ranks return an error in time, and its text names the failed
// rank if one rank is at fault.

#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/testing/rank_reports.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ConnectOptions kQuick = {.timeout = absl::Seconds(2), .grace = absl::Seconds(1)};

// Runs with a file store, which outlives every rank, and with a TCP store, which rank 0 serves.
class FaultTest : public ::testing::TestWithParam<bool> {
 protected:
  absl::StatusOr<std::unique_ptr<Collectives>> Connect(RankPlace place,
                                                       const ConnectOptions& options = kQuick) {
    if (GetParam()) {
      place.store = absl::StrCat("tcp:127.0.0.1:", port_);
      place.serves_store = place.ranks.rank == 0;
    }
    return ConnectRanks(place, at::kCPU, options);
  }

  void ExpectReports(const RankReports& reports, std::vector<int> ranks, absl::StatusCode code,
                     const std::string& text) {
    for (int rank : ranks) {
      ASSERT_TRUE(reports.of(rank).has_value()) << "rank " << rank << " did not return";
      EXPECT_EQ(reports.of(rank)->code(), code) << *reports.of(rank);
      EXPECT_THAT(std::string(reports.of(rank)->message()), HasSubstr(text)) << "rank " << rank;
    }
  }

  const int port_ = FreePort();
};

INSTANTIATE_TEST_SUITE_P(Stores, FaultTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "File"; });

// Sums until a call fails, at most `steps` times. Checks that further calls repeat the failure, and
// returns it.
absl::Status SumUntilFailure(Collectives& ranks, int steps, int64_t size = 100) {
  at::Tensor tensor = at::ones({size});
  for (int step = 0; step < steps; ++step) {
    const absl::Status status = ranks.AllReduce(tensor);
    if (status.ok()) continue;
    EXPECT_EQ(ranks.status(), status);
    EXPECT_EQ(ranks.Barrier(), status) << "the group cannot be used any more";
    return status;
  }
  return absl::OkStatus();
}

TEST_P(FaultTest, OtherRanksNameAKilledRank) {
  for (int victim : {0, 1, 2}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim));
    const RankReports reports(3, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(auto ranks, Connect(place));
      REPRISE_RETURN_IF_ERROR(SumUntilFailure(*ranks, 5));
      if (place.ranks.rank == victim) raise(SIGKILL);
      return SumUntilFailure(*ranks, 5);
    });
    EXPECT_THAT(std::string(reports.status().message()),
                HasSubstr(absl::StrCat("rank ", victim, " was killed by signal 9")));
    std::vector<int> others = {0, 1, 2};
    others.erase(others.begin() + victim);
    // With a TCP store, the store ends with rank 0.
    const std::string text =
        GetParam() && victim == 0 ? "rank 0" : absl::StrCat("rank ", victim, " (process ");
    ExpectReports(reports, others, absl::StatusCode::kUnavailable, text);
    EXPECT_LT(reports.took(), absl::Seconds(15));
  }
}

TEST_P(FaultTest, OtherRanksNameARankKilledInACollective) {
  const RankReports reports(3, [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, Connect(place));
    std::thread killer;
    if (place.ranks.rank == 1) {
      std::thread([] {
        absl::SleepFor(absl::Milliseconds(200));
        raise(SIGKILL);
      }).detach();
    }
    return SumUntilFailure(*ranks, 1'000'000, 1'000'000);
  });
  ExpectReports(reports, {0, 2}, absl::StatusCode::kUnavailable, "rank 1 (process ");
  EXPECT_LT(reports.took(), absl::Seconds(15));
}

TEST_P(FaultTest, OtherRanksNameARankThatHangs) {
  for (int victim : {0, 2}) {
    const RankReports reports(
        3,
        [&](const RankPlace& place) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(auto ranks, Connect(place));
          REPRISE_RETURN_IF_ERROR(SumUntilFailure(*ranks, 5));
          if (place.ranks.rank == victim) HangUntilOthersReturn();
          return SumUntilFailure(*ranks, 5);
        },
        absl::Seconds(30));
    std::vector<int> others = {0, 1, 2};
    others.erase(others.begin() + victim);
    ExpectReports(reports, others, absl::StatusCode::kDeadlineExceeded,
                  absl::StrCat("rank ", victim, " (process "));
    ExpectReports(reports, others, absl::StatusCode::kDeadlineExceeded, "did not reach AllReduce");
    EXPECT_LT(reports.took(), absl::Seconds(7));
  }
}

// The failed rank's process ends after Fail() has returned. The other ranks do not wait for their
// timeout.
TEST_P(FaultTest, OtherRanksReturnTheReasonOfFail) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("rank ", victim));
    const RankReports reports(3, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(
          auto ranks, Connect(place, {.timeout = absl::Seconds(30), .grace = absl::Seconds(2)}));
      if (place.ranks.rank == victim) {
        const absl::Status why = absl::NotFoundError("model.safetensors was not found");
        ranks->Fail(why);
        EXPECT_EQ(ranks->status(), why);
        return why;
      }
      return SumUntilFailure(*ranks, 5);
    });
    const std::vector<int> others = {1 - victim, 2};
    ExpectReports(reports, others, absl::StatusCode::kUnavailable,
                  absl::StrCat("rank ", victim, " (process "));
    ExpectReports(reports, others, absl::StatusCode::kUnavailable,
                  "model.safetensors was not found");
    EXPECT_LT(reports.took(), absl::Seconds(10));
  }
}

TEST_P(FaultTest, NamesARankThatDoesNotJoin) {
  const RankReports reports(2, [&](const RankPlace& forked) -> absl::Status {
    RankPlace place = forked;
    place.ranks.world = 4;
    place.ranks.rank *= 2;
    return Connect(place).status();
  });
  ExpectReports(reports, {0, 1}, absl::StatusCode::kDeadlineExceeded,
                "ranks 1, 3 of 4 did not come within 2s");
  EXPECT_LT(reports.took(), absl::Seconds(8));
}

TEST_P(FaultTest, RejectsDifferentWorldSizes) {
  const RankReports reports(3, [&](const RankPlace& forked) -> absl::Status {
    RankPlace place = forked;
    if (place.ranks.rank == 1) place.ranks.world = 5;
    return Connect(place).status();
  });
  ExpectReports(reports, {0, 1, 2}, absl::StatusCode::kInvalidArgument, "a world of ");
  EXPECT_LT(reports.took(), absl::Seconds(8));
}

TEST_P(FaultTest, RejectsARankThatJoinsTwice) {
  const RankReports reports(3, [&](const RankPlace& forked) -> absl::Status {
    RankPlace place = forked;
    if (place.ranks.rank == 2) {
      place.ranks.rank = 1;
      absl::SleepFor(absl::Milliseconds(300));
    }
    return Connect(place).status();
  });
  ExpectReports(reports, {0, 1, 2}, absl::StatusCode::kInvalidArgument, "is not the first rank 1");
}

TEST_P(FaultTest, RejectsDifferentConfigs) {
  const RankReports reports(3, [&](const RankPlace& place) -> absl::Status {
    ConnectOptions options = kQuick;
    options.config = place.ranks.rank == 2 ? "llama, bf16, block 32" : "llama, bf16, block 16";
    return Connect(place, options).status();
  });
  ExpectReports(reports, {0, 1, 2}, absl::StatusCode::kFailedPrecondition,
                "a different configuration from rank");
  ExpectReports(reports, {0, 1, 2}, absl::StatusCode::kFailedPrecondition, "block 32");
  ExpectReports(reports, {0, 1, 2}, absl::StatusCode::kFailedPrecondition, "block 16");
}

TEST_P(FaultTest, RanksInDifferentCallsFail) {
  const RankReports reports(2, [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, Connect(place));
    if (place.ranks.rank == 0) return ranks->Barrier();
    return SumUntilFailure(*ranks, 1);
  });
  for (int rank : {0, 1}) {
    ASSERT_TRUE(reports.of(rank).has_value());
    EXPECT_FALSE(reports.of(rank)->ok()) << "rank " << rank;
  }
  EXPECT_LT(reports.took(), absl::Seconds(10));
}

TEST(PortTest, NamesAPortInUse) {
  // Listens on the port without answering.
  const int listener = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  const int port = FreePort();
  address.sin6_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  const RankReports reports(
      2,
      [&](const RankPlace& forked) -> absl::Status {
        RankPlace place = forked;
        place.store = absl::StrCat("tcp:127.0.0.1:", port);
        place.serves_store = place.ranks.rank == 0;
        return ConnectRanks(place, at::kCPU, kQuick).status();
      },
      absl::Seconds(30));
  close(listener);
  ASSERT_TRUE(reports.of(0).has_value());
  EXPECT_EQ(reports.of(0)->code(), absl::StatusCode::kUnavailable) << *reports.of(0);
  EXPECT_THAT(std::string(reports.of(0)->message()),
              HasSubstr(absl::StrCat("port ", port, " is in use: set MASTER_PORT")));
  ASSERT_TRUE(reports.of(1).has_value());
  EXPECT_EQ(reports.of(1)->code(), absl::StatusCode::kDeadlineExceeded) << *reports.of(1);
  EXPECT_LT(reports.took(), absl::Seconds(10));
}

TEST(StoreTest, NamesAFileThatCannotBeOpened) {
  const RankPlace place = {
      .ranks = {.rank = 0, .world = 2}, .store = "file:/no/such/folder/store", .run = ""};
  const auto ranks = ConnectRanks(place, at::kCPU, kQuick);
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kUnavailable) << ranks.status();
  EXPECT_THAT(std::string(ranks.status().message()), HasSubstr("/no/such/folder/store"));
}

}  // namespace
}  // namespace reprise
