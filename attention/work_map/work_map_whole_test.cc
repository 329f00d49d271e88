// Columns of whole query ranges: which batches have them, and what becomes of them when lengths
// change under one plan.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/device_profile.h"
#include "attention/testing/host_work_map.h"
#include "attention/testing/random.h"
#include "attention/work_map/work_map.h"
#include "attention/work_map/work_map_build.h"
#include "attention/work_map/work_map_check.h"
#include "attention/work_map/work_map_plan.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

// A batch of rows of `query_len` queries, whose lengths may change.
class Batch {
 public:
  explicit Batch(std::vector<int32_t> lens, int query_len = 1)
      : lens_(std::move(lens)), max_seq_len_(*std::max_element(lens_.begin(), lens_.end())) {
    for (size_t r = 0; r <= lens_.size(); ++r) {
      query_start_loc_.push_back(static_cast<int32_t>(r) * query_len);
    }
    query_len_ = query_len;
  }

  std::vector<int32_t>& lens() { return lens_; }

  PagedBatch Paged() const {
    return {.query_start_loc = query_start_loc_.data(),
            .seq_lens = lens_.data(),
            .num_rows = static_cast<int>(lens_.size()),
            .num_tokens = query_start_loc_.back(),
            .max_query_len = query_len_,
            .max_seq_len = max_seq_len_};
  }

  WorkMapOptions Options(int num_kv_heads = 8) const {
    const PagedBatch batch = Paged();
    return {.num_q_heads = 4 * num_kv_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim_qk = 128,
            .head_dim_v = 128,
            .max_rows = batch.num_rows,
            .max_tokens = batch.num_tokens,
            .max_query_len = batch.max_query_len,
            .max_seq_len = batch.max_seq_len};
  }

 private:
  std::vector<int32_t> lens_;
  std::vector<int32_t> query_start_loc_;
  int query_len_ = 1;
  int max_seq_len_;
};

void Build(const Batch& batch, HostWorkMap& work) {
  work.Poison();
  ASSERT_TRUE(WorkMapOnHost(batch.Paged(), {}, work.map()).ok());
  const absl::Status checked = CheckWorkMap(work.map(), batch.Paged(), {});
  ASSERT_TRUE(checked.ok()) << checked;
  EXPECT_TRUE(work.IsGuardIntact());
}

// The items of each column that has any.
std::vector<int> ItemsOfColumns(const TileMap& map) {
  std::vector<int> counts;
  for (int column = 0; column < map.num_columns; ++column) {
    const int count = map.column_items[column + 1] - map.column_items[column];
    if (count > 0) counts.push_back(count);
  }
  return counts;
}

int NumMerges(const Batch& batch, const WorkMapOptions& options) {
  HostWorkMap work(options);
  Build(batch, work);
  return work.map().main.counts[1];
}

// 33 columns.
TEST(WorkMapWholeTest, EqualRowsThatNearlyFillTheColumnsAreNotCut) {
  for (const auto& [num_rows, of_column] :
       {std::pair{64, 2}, std::pair{63, 2}, std::pair{66, 2}, std::pair{96, 3}, std::pair{128, 4},
        std::pair{256, 8}}) {
    for (const int len : {1024, 1065, 4096, 16384}) {
      SCOPED_TRACE(std::to_string(num_rows) + " x " + std::to_string(len));
      const Batch batch(std::vector<int32_t>(num_rows, len));
      HostWorkMap work(batch.Options());
      Build(batch, work);
      const TileMap& map = work.map().main;
      EXPECT_EQ(map.counts[0], num_rows);
      EXPECT_EQ(map.counts[1], 0);
      const std::vector<int> counts = ItemsOfColumns(map);
      for (size_t c = 0; c + 1 < counts.size(); ++c) EXPECT_EQ(counts[c], of_column) << c;
      WorkMapOptions filled = batch.Options();
      filled.costs.whole_ranges_percent = 0;
      EXPECT_GE(NumMerges(batch, filled), num_rows == 66 ? 0 : 20);
    }
  }
}

TEST(WorkMapWholeTest, DraftsToVerifyAreNotCutEither) {
  for (const int query_len : {4, 6}) {  // of 16 and of 24 rows of q
    const Batch batch(std::vector<int32_t>(128, 4096), query_len);
    EXPECT_EQ(NumMerges(batch, batch.Options()), 0) << query_len;
  }
}

// Idle columns: of 62 rows in pairs 31 columns are 6.5 % wider than 33 filled ones.
TEST(WorkMapWholeTest, RowsThatLeaveManyColumnsIdleAreCut) {
  for (const int num_rows : {34, 40, 62, 70, 90, 100}) {
    const Batch batch(std::vector<int32_t>(num_rows, 1024));
    EXPECT_GT(NumMerges(batch, batch.Options()), 0) << num_rows;
  }
}

TEST(WorkMapWholeTest, RowsOfUnlikeLengthsAreCut) {
  std::vector<int32_t> lens(64, 4096);
  lens[7] += 2 * kWorkStepKeys;
  const Batch alike(lens);
  EXPECT_EQ(NumMerges(alike, alike.Options()), 0);
  // 4.8 % wider, but one CTA would end three steps after the others.
  lens[7] += kWorkStepKeys;
  const Batch unlike(lens);
  EXPECT_GT(NumMerges(unlike, unlike.Options()), 0);
}

TEST(WorkMapWholeTest, PaddedRowsDoNotCount) {
  for (const int live : {32, 64, 128}) {
    std::vector<int32_t> lens(live, 1024);
    lens.resize(live + live / 4, 0);
    const Batch batch(lens);
    HostWorkMap work(batch.Options());
    Build(batch, work);
    const TileMap& map = work.map().main;
    EXPECT_EQ(map.counts[1], 0) << live;
    EXPECT_EQ(map.counts[0], live + live / 4);
    for (int column = 0; column < 32; ++column) {
      EXPECT_EQ(map.column_items[column + 1] - map.column_items[column], live / 32) << live;
    }
  }
  // All padded.
  const Batch batch(std::vector<int32_t>(64, 1024));
  HostWorkMap work(batch.Options());
  Batch padded = batch;
  std::fill(padded.lens().begin(), padded.lens().end(), 0);
  Build(padded, work);
}

TEST(WorkMapWholeTest, LengthsMayChangeUnderOnePlan) {
  Random random(3);
  for (const int num_kv_heads : {1, 2, 8}) {
    Batch batch(std::vector<int32_t>(2 * (264 / num_kv_heads) + 5, 5000));
    HostWorkMap work(batch.Options(num_kv_heads));
    int num_whole = 0;
    for (int round = 0; round < 60; ++round) {
      const int live = random.Int(0, static_cast<int>(batch.lens().size()));
      const int len = random.Pick({100, 1000, 5000});
      const int spread = random.Pick({0, 0, 30, 900});
      for (int r = 0; r < static_cast<int>(batch.lens().size()); ++r) {
        batch.lens()[r] = r < live ? std::clamp(len - random.Int(0, spread), 1, 5000) : 0;
      }
      Build(batch, work);
      const TileMap& map = work.map().main;
      num_whole += live > map.num_columns && map.counts[1] == 0;
    }
    EXPECT_GE(num_whole, 2) << num_kv_heads;
  }
}

TEST(WorkMapWholeTest, OnlyTilesThatReadingBoundsHaveWholeRanges) {
  const auto percent = [](const WorkMapOptions& options) {
    return PlanWorkMap(options)->shape.main.whole_ranges_percent;
  };
  const WorkMapOptions decode = Batch(std::vector<int32_t>(64, 1024)).Options();
  EXPECT_EQ(percent(decode), H200Profile().work_map.whole_ranges_percent);
  EXPECT_GT(percent(decode), 0);
  WorkMapOptions other = decode;
  other.max_query_len = 8;  // tiles of 32 rows of q
  other.max_tokens = 8 * other.max_rows;
  EXPECT_GT(percent(other), 0);
  other.max_query_len = 100;
  EXPECT_EQ(percent(other), 0);
  other = decode;
  other.dtype = DType::kFloat32;
  EXPECT_EQ(percent(other), 0);
  other = decode;
  other.mode = WorkMapMode::kDeterministic;
  EXPECT_EQ(percent(other), 0);
}

}  // namespace
}  // namespace reprise
