// What a map was built for: attention refuses another batch, and launches the clusters of the build.

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/host_work_map.h"
#include "reprise/attention/testing/work_map_rows.h"
#include "reprise/attention/work_map/work_map_build.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

Rows Decodes(int num_rows) { return Rows(std::vector<int32_t>(num_rows, 8192)); }

WorkMapOptions OptionsWith(int max_tokens, RowSplit split = RowSplit::kByBatch) {
  return {.num_q_heads = 32,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .max_rows = 16,
          .max_tokens = max_tokens,
          .max_query_len = max_tokens / 16,
          .max_seq_len = 8192,
          .split = split};
}

std::string MessageFor(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  const absl::Status status = CheckBuiltFor(batch, window, map);
  EXPECT_EQ(status.code(),
            status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(WorkMapBuiltForTest, AnotherNumberOfRowsIsRefused) {
  const Rows four = Decodes(4), five = Decodes(5);
  HostWorkMap work(OptionsWith(16));
  const WorkMap copy = work.map();
  EXPECT_EQ(MessageFor(five.batch, {}, copy), "");  // not built yet
  ASSERT_TRUE(WorkMapOnHost(four.batch, {}, work.map()).ok());
  EXPECT_EQ(MessageFor(four.batch, {}, copy), "");
  EXPECT_THAT(MessageFor(five.batch, {}, copy), HasSubstr("expected num_rows 4, got 5"));
  ASSERT_TRUE(WorkMapOnHost(five.batch, {}, copy).ok());
  EXPECT_EQ(MessageFor(five.batch, {}, work.map()), "");
  RaggedBatch ragged = {.num_rows = 4, .num_tokens = 4, .max_query_len = 1, .max_seq_len = 8192};
  EXPECT_THAT(std::string(CheckBuiltFor(ragged, {}, work.map()).message()),
              HasSubstr("expected num_rows 5, got 4"));
}

TEST(WorkMapBuiltForTest, AWiderWindowIsRefusedAndANarrowerOneIsNot) {
  const Rows decodes = Decodes(2);
  HostWorkMap work(OptionsWith(16));
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {.left = 400, .right = 3}, work.map()).ok());
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 400, .right = 3}, work.map()), "");
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 0, .right = 0}, work.map()), "");
  EXPECT_THAT(MessageFor(decodes.batch, {.left = 401, .right = 3}, work.map()),
              HasSubstr("window_left at most 400, got 401"));
  EXPECT_THAT(MessageFor(decodes.batch, {.right = 3}, work.map()),
              HasSubstr("window_left at most 400, got none"));
  EXPECT_THAT(MessageFor(decodes.batch, {.left = 4}, work.map()),
              HasSubstr("window_right at most 3, got none"));
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {}, work.map()).ok());
  EXPECT_EQ(MessageFor(decodes.batch, {.left = 7}, work.map()), "");
}

// A narrower window would have clusters, whose kernel has fewer columns than the map: items of the last
// ones would have no CTA.
TEST(WorkMapBuiltForTest, TheClustersAreThoseOfTheBuild) {
  const Rows decodes = Decodes(2);
  HostWorkMap work(OptionsWith(16));
  const TileMap& map = work.map().main;
  const auto cluster_for = [&](int window_left) {
    return FormAsBuilt(map, work.map(), decodes.batch.num_rows, window_left).cluster;
  };
  ASSERT_EQ(ClusterOf(map, 2, -1), 1);
  ASSERT_EQ(ClusterOf(map, 2, 400), 4);
  EXPECT_EQ(cluster_for(400), 4);  // not built yet
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {}, work.map()).ok());
  EXPECT_EQ(cluster_for(400), 1);
  // There are items that a kernel in clusters of four would not have.
  ASSERT_LT(ColumnsInUse(map, 4), map.num_columns);
  EXPECT_LT(map.column_items[ColumnsInUse(map, 4)], map.counts[0]);
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {.left = 400}, work.map()).ok());
  EXPECT_EQ(cluster_for(400), 4);
  EXPECT_EQ(cluster_for(100), 4);
  EXPECT_EQ(map.column_items[ColumnsInUse(map, 4)], map.counts[0]);
}

// Likewise wide CTAs, of which there are half as many columns.
TEST(WorkMapBuiltForTest, WideCtasAreThoseOfTheBuild) {
  const Rows decodes = Decodes(2);
  WorkMapOptions options = OptionsWith(16);
  options.num_kv_heads = 1;
  options.num_q_heads = 4;
  HostWorkMap work(options);
  const auto is_wide_for = [&](int window_left) {
    return FormAsBuilt(work.map().main, work.map(), 2, window_left).is_wide;
  };
  EXPECT_FALSE(is_wide_for(400));  // not built yet
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {}, work.map()).ok());
  EXPECT_TRUE(is_wide_for(-1));
  EXPECT_TRUE(is_wide_for(400));
  ASSERT_TRUE(WorkMapOnHost(decodes.batch, {.left = 400}, work.map()).ok());
  EXPECT_FALSE(is_wide_for(400));
}

// The bounds decide whether short rows have a map of their own.
TEST(WorkMapBuiltForTest, BoundsThatDivideTheRowsInAnotherWayAreRefused) {
  Rows rows = Decodes(16);
  rows.batch.max_query_len = 100;
  rows.batch.num_tokens = 115;
  HostWorkMap work(OptionsWith(16 * 512));
  ASSERT_TRUE(work.map().has_short_rows());
  ASSERT_TRUE(WorkMapOnHost(rows.batch, {}, work.map()).ok());
  EXPECT_EQ(MessageFor(rows.batch, {}, work.map()), "");
  PagedBatch other = rows.batch;
  other.max_seq_len = 64;
  ASSERT_NE(LongestShortRow(other, work.map()), LongestShortRow(rows.batch, work.map()));
  EXPECT_THAT(MessageFor(other, {}, work.map()), HasSubstr("other bounds"));
}

TEST(WorkMapBuiltForTest, MapsThatDivideByRowTakeAnyBatch) {
  const Rows four = Decodes(4), five = Decodes(5);
  HostWorkMap work(OptionsWith(16, RowSplit::kByRow));
  EXPECT_EQ(work.map().build, nullptr);
  ASSERT_TRUE(WorkMapOnHost(four.batch, {.left = 5}, work.map()).ok());
  EXPECT_EQ(MessageFor(five.batch, {}, work.map()), "");
}

}  // namespace
}  // namespace reprise
