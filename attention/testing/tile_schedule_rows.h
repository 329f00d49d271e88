// Batches of bare rows, and matchers for the items of their tile schedule.
//
//   const Rows rows({500, 64, 1000});  // decode rows with these numbers of keys
//   HostTileSchedule work(OptionsFor(rows.batch));
//   ASSERT_TRUE(TileScheduleOnHost(rows.batch, {}, work.schedule()).ok());
//   EXPECT_THAT(ItemsOf(work.schedule().main), Contains(KeysOfRow(1, 0, 64)));

#ifndef REPRISE_ATTENTION_TESTING_TILE_SCHEDULE_ROWS_H_
#define REPRISE_ATTENTION_TESTING_TILE_SCHEDULE_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Rows of `query_len` queries each, over the given numbers of keys. Lengths and bounds may be
// changed.
struct Rows {
  explicit Rows(std::vector<int32_t> lens, int query_len = 1) : seq_lens(std::move(lens)) {
    for (size_t r = 0; r <= seq_lens.size(); ++r) {
      query_start_loc.push_back(static_cast<int32_t>(r) * query_len);
    }
    batch = {.query_start_loc = query_start_loc.data(),
             .seq_lens = seq_lens.data(),
             .num_rows = static_cast<int>(seq_lens.size()),
             .num_tokens = query_start_loc.back(),
             .max_query_len = query_len,
             .max_seq_len = *std::max_element(seq_lens.begin(), seq_lens.end())};
  }
  Rows(const Rows& other)
      : seq_lens(other.seq_lens), query_start_loc(other.query_start_loc), batch(other.batch) {
    batch.query_start_loc = query_start_loc.data();
    batch.seq_lens = seq_lens.data();
  }
  Rows& operator=(const Rows&) = delete;

  std::vector<int32_t> seq_lens;
  std::vector<int32_t> query_start_loc;
  PagedBatch batch;  // points to these arrays
};

// Returns options whose bounds equal the batch's, for groups of 4 q heads with 128 dims.
inline TileScheduleOptions OptionsFor(const PagedBatch& batch, int num_kv_heads = 8) {
  const AttentionParams layer = {.num_q_heads = 4 * num_kv_heads,
                                 .num_kv_heads = num_kv_heads,
                                 .head_dim_qk = 128,
                                 .head_dim_v = 128};
  return OptionsFor(batch, layer, DType::kBFloat16);
}

inline std::vector<WorkItem> ItemsOf(const KernelSchedule& schedule) {
  return {schedule.items, schedule.items + schedule.counts[0]};
}

// Matches an item with keys [begin, end) of the row.
inline auto KeysOfRow(int row, int begin, int end) {
  using ::testing::Field;
  return ::testing::AllOf(Field(&WorkItem::row, row), Field(&WorkItem::key_begin, begin),
                          Field(&WorkItem::key_end, end));
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_TILE_SCHEDULE_ROWS_H_
