#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, third_party_test_flag, 7, "Is registered and read.");

namespace reprise {
namespace {

TEST(AbslTest, LinksWithEveryLibraryOfTheHostFloors) {
  absl::flat_hash_map<std::string, int> map;
  map["seven"] = absl::GetFlag(FLAGS_third_party_test_flag);
  EXPECT_EQ(absl::StrCat(map["seven"]), "7");
  absl::StatusOr<int> status = absl::InvalidArgumentError("no");
  EXPECT_THAT(status.status().ToString(), testing::HasSubstr("INVALID_ARGUMENT"));
}

TEST(GlogTest, ChecksAreOnInEveryCompilationMode) {
  EXPECT_DEATH(CHECK_EQ(1, 2) << "the reason", "Check failed: 1 == 2.*the reason");
}

}  // namespace
}  // namespace reprise
