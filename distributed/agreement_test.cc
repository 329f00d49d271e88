#include "reprise/distributed/agreement.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/distributed/testing/thread_ranks.h"

namespace reprise {
namespace {

using testing::Each;
using testing::HasSubstr;

TEST(AgreementTest, OneRankAgreesWithItself) {
  EXPECT_EQ(*MinOverRanks(nullptr, 7), 7);
  EXPECT_TRUE(StatusOverRanks(nullptr, absl::OkStatus()).ok());
  EXPECT_EQ(StatusOverRanks(nullptr, absl::NotFoundError("x")), absl::NotFoundError("x"));
  EXPECT_TRUE(CheckSameOverRanks(nullptr, {"a"}, {1}).ok());
  EXPECT_TRUE(CheckSameTextOverRanks(nullptr, "a=1").ok());
  EXPECT_TRUE(*IsSameTextOverRanks(nullptr, "a=1"));
}

TEST(AgreementTest, EveryRankGetsTheSmallestValue) {
  const std::vector<absl::Status> results = RunThreadRanks(3, [](Collectives& collectives) {
    const int64_t values[] = {int64_t{1} << 40, 17, 30};
    const absl::StatusOr<int64_t> least =
        MinOverRanks(&collectives, values[collectives.ranks().rank]);
    EXPECT_TRUE(least.ok()) << least.status();
    EXPECT_EQ(*least, 17);
    return least.status();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
}

TEST(AgreementTest, RepeatedAgreementsNameTheFailedRankOnce) {
  const std::vector<absl::Status> results = RunThreadRanks(3, [](Collectives& collectives) {
    const absl::StatusOr<int64_t> own =
        collectives.ranks().rank == 1 ? absl::StatusOr<int64_t>(absl::NotFoundError("no memory"))
                                      : absl::StatusOr<int64_t>(5);
    return StatusOverRanks(&collectives, MinOverRanks(&collectives, own).status());
  });
  EXPECT_THAT(results, Each(absl::NotFoundError("rank 1: no memory")));
}

TEST(AgreementTest, EveryRankGetsTheFirstFailure) {
  const std::vector<absl::Status> results = RunThreadRanks(4, [](Collectives& collectives) {
    const int rank = collectives.ranks().rank;
    EXPECT_TRUE(StatusOverRanks(&collectives, absl::OkStatus()).ok());
    return StatusOverRanks(&collectives, rank == 2   ? absl::NotFoundError("no such file")
                                         : rank == 3 ? absl::InternalError("later")
                                                     : absl::OkStatus());
  });
  EXPECT_THAT(results, Each(absl::NotFoundError("rank 2: no such file")));
}

TEST(AgreementTest, EqualFailureOnAllRanksNamesNoRank) {
  const std::vector<absl::Status> results = RunThreadRanks(3, [](Collectives& collectives) {
    return StatusOverRanks(&collectives, absl::NotFoundError("no such file"));
  });
  EXPECT_THAT(results, Each(absl::NotFoundError("no such file")));
}

TEST(AgreementTest, LongMessagesAreCut) {
  const std::vector<absl::Status> results = RunThreadRanks(2, [](Collectives& collectives) {
    return StatusOverRanks(&collectives, collectives.ranks().rank == 1
                                             ? absl::InternalError(std::string(5000, 'x'))
                                             : absl::OkStatus());
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(status.message(), "rank 1: " + std::string(1015, 'x'));
  }
}

TEST(AgreementTest, NamesTheFirstDifferingValue) {
  const std::vector<std::string_view> names = {"max_num_seqs", "block_size"};
  const std::vector<absl::Status> results = RunThreadRanks(3, [&](Collectives& collectives) {
    const int rank = collectives.ranks().rank;
    const std::vector<int64_t> same = {8, 16};
    EXPECT_TRUE(CheckSameOverRanks(&collectives, names, same).ok());
    const std::vector<int64_t> other = {8, rank == 2 ? 32 : 16};
    return CheckSameOverRanks(&collectives, names, other);
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("block_size must be the same on all ranks: expected "
                                            "16 as on rank 0, got 32 on rank 2"));
  }
}

// Runs three ranks: rank 1 passes `other`, the two other ranks pass `first`. Returns their common
// result.
absl::Status ToldOfTexts(const std::string& first, const std::string& other) {
  const std::vector<absl::Status> results = RunThreadRanks(3, [&](Collectives& collectives) {
    const std::string& own = collectives.ranks().rank == 1 ? other : first;
    const absl::StatusOr<bool> same = IsSameTextOverRanks(&collectives, own);
    EXPECT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(*same, first == other);
    return CheckSameTextOverRanks(&collectives, own);
  });
  EXPECT_THAT(results, Each(results[0]));
  return results[0];
}

TEST(AgreementTest, NamesTheFirstDifferingLine) {
  EXPECT_TRUE(ToldOfTexts("", "").ok());
  EXPECT_TRUE(ToldOfTexts("a=1\nb=2\n", "a=1\nb=2\n").ok());
  EXPECT_EQ(ToldOfTexts("a=1\nsizes=1,2\nc=3\n", "a=1\nsizes=1,2,4\nc=4\n"),
            absl::FailedPreconditionError("sizes must be the same on all ranks: expected 1,2 as on "
                                          "rank 0, got 1,2,4 on rank 1"));
  EXPECT_EQ(ToldOfTexts("a=\n", "a=7\n"),
            absl::FailedPreconditionError(
                "a must be the same on all ranks: expected  as on rank 0, got 7 on rank 1"));
  EXPECT_EQ(ToldOfTexts("a=1\nb=2", "a=1"),
            absl::FailedPreconditionError("ranks must have the same options: expected b=2 as on "
                                          "rank 0, got nothing on rank 1"));
  // The next line of the longer text is empty.
  EXPECT_EQ(
      ToldOfTexts("a=1", "a=1\n"),
      absl::FailedPreconditionError("ranks must have the same options: expected nothing as on "
                                    "rank 0, got  on rank 1"));
  EXPECT_EQ(ToldOfTexts("a=1\n", "a=1"),
            absl::FailedPreconditionError("ranks must have the same options: expected  as on "
                                          "rank 0, got nothing on rank 1"));
  EXPECT_EQ(ToldOfTexts("a=1", "b=1\na=1"),
            absl::FailedPreconditionError("ranks must have the same options: expected a=1 as on "
                                          "rank 0, got b=1 on rank 1"));
  const std::string many(1000, 'f');
  EXPECT_EQ(ToldOfTexts("layers=" + many + "w", "layers=" + many + "c"),
            absl::FailedPreconditionError(
                "layers must be the same on all ranks: expected \"...ffffffffffffffffffffw\", got "
                "\"...ffffffffffffffffffffc\" on rank 1"));
}

TEST(AgreementTest, EndedRankFailsTheAgreementOfOtherRanks) {
  const std::vector<absl::Status> results = RunThreadRanks(2, [](Collectives& collectives) {
    if (collectives.ranks().rank == 1) return absl::OkStatus();
    return MinOverRanks(&collectives, 1).status();
  });
  EXPECT_EQ(results[0], absl::UnavailableError("rank 1 has ended"));
}

}  // namespace
}  // namespace reprise
