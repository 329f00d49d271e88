#include "reprise/distributed/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/rank_reports.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Milliseconds(300);

// A rank with a PeerWatch. Tests can wait for its release.
struct Watched {
  static absl::StatusOr<std::unique_ptr<Watched>> Create(const RankPlace& place,
                                                         absl::Duration timeout = absl::Seconds(20),
                                                         absl::Duration grace = kSoon) {
    auto watched = std::make_unique<Watched>();
    REPRISE_ASSIGN_OR_RETURN(auto store, Peers::OpenStore(place, absl::Seconds(20)));
    REPRISE_ASSIGN_OR_RETURN(watched->peers, Peers::Meet(std::move(store), place.ranks,
                                                         {.timeout = absl::Seconds(20),
                                                          .grace = grace,
                                                          .serves_store = place.serves_store}));
    watched->watch = std::make_unique<PeerWatch>(
        watched->peers.get(), PeerWatchOptions{.timeout = timeout, .poll = absl::Milliseconds(20)},
        [released = &watched->released](const absl::Status& why) {
          EXPECT_FALSE(why.ok());
          released->Notify();
        });
    return watched;
  }

  // Simulates device work that ends only by the release.
  absl::Status AwaitRelease(std::optional<absl::Duration> limit = std::nullopt) {
    return watch->Await(
        [&] {
          EXPECT_TRUE(released.WaitForNotificationWithTimeout(absl::Seconds(15)));
          return absl::OkStatus();
        },
        limit);
  }

  std::unique_ptr<Peers> peers;
  absl::Notification released;
  std::unique_ptr<PeerWatch> watch;
};

void ExpectReport(const RankReports& reports, int rank, absl::StatusCode code,
                  const std::string& text) {
  ASSERT_TRUE(reports.of(rank).has_value()) << "rank " << rank << " did not return";
  EXPECT_EQ(reports.of(rank)->code(), code) << *reports.of(rank);
  EXPECT_THAT(std::string(reports.of(rank)->message()), HasSubstr(text));
}

TEST(PeerWatchTest, KilledRankEndsTheWaitOfOtherRanks) {
  const RankReports reports(3, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto rank, Watched::Create(place));
    if (place.ranks.rank == 1) {
      absl::SleepFor(kSoon);
      raise(SIGKILL);
    }
    const absl::Status status = rank->AwaitRelease();
    EXPECT_EQ(rank->watch->status(), status);
    EXPECT_EQ(rank->watch->Await([] { return absl::OkStatus(); }, std::nullopt), status);
    return status;
  });
  for (int rank : {0, 2}) {
    ExpectReport(reports, rank, absl::StatusCode::kUnavailable, "rank 1 (process ");
    ExpectReport(reports, rank, absl::StatusCode::kUnavailable, "has ended");
  }
  EXPECT_LT(reports.took(), absl::Seconds(10));
}

TEST(PeerWatchTest, LateRankIsNamedAfterTheLimit) {
  for (const bool own_limit : {false, true}) {
    const RankReports reports(2, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(auto rank,
                               Watched::Create(place, own_limit ? absl::Seconds(20) : kSoon));
      if (place.ranks.rank == 0) {
        return rank->AwaitRelease(own_limit ? std::optional(kSoon) : std::nullopt);
      }
      absl::SleepFor(absl::Seconds(3));
      return absl::OkStatus();
    });
    ExpectReport(reports, 0, absl::StatusCode::kDeadlineExceeded, "rank 1 (process ");
    ExpectReport(reports, 0, absl::StatusCode::kDeadlineExceeded, "did not reach device work");
  }
}

// The rank's own watch reports the hang as a failure of device work, while the other rank waits in
// the next call.
TEST(PeerWatchTest, BothRanksNameTheRankThatHangsInDeviceWork) {
  const RankReports reports(2, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto rank,
                             Watched::Create(place, absl::Seconds(20), absl::Seconds(1)));
    if (place.ranks.rank == 1) return rank->AwaitRelease(kSoon);
    absl::SleepFor(kSoon);
    return rank->peers->Explain("Broadcast (call 7)", "it took too long");
  });
  for (const int rank : {0, 1}) {
    ExpectReport(reports, rank, absl::StatusCode::kDeadlineExceeded, "rank 1 (process ");
    ExpectReport(reports, rank, absl::StatusCode::kDeadlineExceeded,
                 "did not reach Broadcast (call 7): device work did not end in time");
  }
}

TEST(PeerWatchTest, NoRankIsNamedIfDeviceWorkOfAllRanksFails) {
  const RankReports reports(2, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto rank,
                             Watched::Create(place, absl::Seconds(20), absl::Seconds(1)));
    return rank->AwaitRelease(kSoon);
  });
  for (const int rank : {0, 1}) {
    ExpectReport(reports, rank, absl::StatusCode::kInternal, "every rank reports a failure");
  }
}

TEST(PeerWatchTest, OtherRanksReturnTheReasonOfFail) {
  const RankReports reports(2, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto rank, Watched::Create(place));
    if (place.ranks.rank == 0) return rank->AwaitRelease();
    const absl::Status why = absl::NotFoundError("no such weights");
    rank->peers->Fail(why);
    rank->watch->Fail(why);
    rank->released.WaitForNotificationWithTimeout(absl::Seconds(5));
    absl::SleepFor(absl::Seconds(1));
    return rank->watch->status();
  });
  ExpectReport(reports, 0, absl::StatusCode::kUnavailable, "rank 1 (process ");
  ExpectReport(reports, 0, absl::StatusCode::kUnavailable, "no such weights");
  ExpectReport(reports, 1, absl::StatusCode::kNotFound, "no such weights");
}

// Includes the rank that serves the store, if it ends after the grace period and its store ends
// with it.
TEST(PeerWatchTest, RankThatLeavesIsNotAFailure) {
  for (const int leaving : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "rank " << leaving);
    const int port = FreePort();
    const RankReports reports(3, [&](const RankPlace& forked) -> absl::Status {
      RankPlace place = forked;
      place.store = absl::StrCat("tcp:127.0.0.1:", port);
      place.serves_store = place.ranks.rank == 0;
      REPRISE_ASSIGN_OR_RETURN(auto rank,
                               Watched::Create(place, absl::Seconds(20), absl::Seconds(3)));
      if (place.ranks.rank == leaving) return absl::OkStatus();
      absl::SleepFor(absl::Seconds(5));
      return rank->watch->status();
    });
    EXPECT_TRUE(reports.ok()) << reports.text();
  }
}

// The process that serves the store waits until the other ranks have left, at most for the grace
// period.
TEST(PeerWatchTest, TheRankThatServesTheStoreLeavesLast) {
  const int port = FreePort();
  const RankReports reports(2, [&](const RankPlace& forked) -> absl::Status {
    RankPlace place = forked;
    place.store = absl::StrCat("tcp:127.0.0.1:", port);
    place.serves_store = place.ranks.rank == 0;
    REPRISE_ASSIGN_OR_RETURN(auto rank,
                             Watched::Create(place, absl::Seconds(20), absl::Seconds(10)));
    if (place.ranks.rank == 1) absl::SleepFor(absl::Seconds(1));
    const absl::Time begin = absl::Now();
    rank->watch.reset();
    if (place.ranks.rank == 0) {
      EXPECT_GE(absl::Now() - begin, kSoon);
      EXPECT_LT(absl::Now() - begin, absl::Seconds(8));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

TEST(PeerWatchTest, LimitAppliesOnlyDuringAWait) {
  const RankReports reports(2, [](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto rank, Watched::Create(place, kSoon));
    absl::SleepFor(2 * kSoon);
    REPRISE_RETURN_IF_ERROR(rank->watch->status());
    // The inner limit applies, and the result of `wait` is returned.
    const absl::Status result = rank->watch->Await(
        [&] {
          return rank->watch->Await(
              [] {
                absl::SleepFor(2 * kSoon);
                return absl::DataLossError("its own");
              },
              absl::InfiniteDuration());
        },
        std::nullopt);
    EXPECT_EQ(result, absl::DataLossError("its own"));
    return rank->watch->status();
  });
  EXPECT_TRUE(reports.ok()) << reports.text();
}

}  // namespace
}  // namespace reprise
