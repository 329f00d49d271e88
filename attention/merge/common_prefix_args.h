// Arguments of the search for a common prefix, and the rules for one row; shared by the host and
// device forms (attention/merge/common_prefix.h).

#ifndef REPRISE_ATTENTION_MERGE_COMMON_PREFIX_ARGS_H_
#define REPRISE_ATTENTION_MERGE_COMMON_PREFIX_ARGS_H_

#include <cstdint>

#include "reprise/attention/paged_batch.h"
#include "reprise/base/host_device.h"

namespace reprise {

struct CommonPrefixArgs {
  PagedBatch batch = {};
  int block_size = 0;
  int32_t* common_prefix_len = nullptr;  // [1]; may be absent on the host
  // [2] used only on the device: must be 0 before the first launch; each launch resets it to 0.
  uint32_t* scratch = nullptr;
};

struct PrefixRow {
  // Number of keys that may be in the prefix; -1: the row is ignored.
  int64_t num_keys = -1;
  int64_t key_start = 0;
  int64_t table_row = 0;
};

// Rows without queries or keys are ignored. A row that reaches outside the table has no common
// keys.
REPRISE_HOST_DEVICE constexpr PrefixRow PrefixRowOf(const CommonPrefixArgs& args, int row) {
  const PagedBatch& batch = args.batch;
  const int64_t query_len =
      static_cast<int64_t>(batch.query_start_loc[row + 1]) - batch.query_start_loc[row];
  const int64_t seq_len = batch.seq_lens[row];
  if (query_len <= 0 || seq_len <= 0) return {};
  const int64_t key_start = batch.key_start ? batch.key_start[row] : 0;
  const int64_t table_row = batch.table_row ? batch.table_row[row] : row;
  const int64_t tail_len = batch.tail_len ? batch.tail_len[row] : 0;
  const int64_t own = tail_len > 0 ? tail_len : (batch.causal ? query_len : 0);
  const int64_t room = static_cast<int64_t>(batch.max_blocks) * args.block_size;
  int64_t num_keys = seq_len > own ? seq_len - own : 0;
  if (table_row < 0 || table_row >= batch.num_tables || key_start < 0 ||
      key_start + seq_len > room) {
    num_keys = 0;
  }
  return {num_keys, key_start, table_row};
}

// Columns [first, end) of the block table that may be common, if each row has at least `num_keys`
// keys.
struct PrefixColumns {
  int first = 0;
  int end = 0;
};
REPRISE_HOST_DEVICE constexpr PrefixColumns PrefixColumnsOf(const CommonPrefixArgs& args,
                                                            int64_t num_keys, int64_t key_start) {
  return {static_cast<int>(key_start / args.block_size),
          static_cast<int>((key_start + num_keys) / args.block_size)};
}

// The prefix length if all rows have the same blocks in the columns before `end`.
REPRISE_HOST_DEVICE constexpr int32_t PrefixLen(const CommonPrefixArgs& args, int end,
                                                int64_t key_start) {
  const int64_t len = static_cast<int64_t>(end) * args.block_size - key_start;
  return len > 0 ? static_cast<int32_t>(len) : 0;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_COMMON_PREFIX_ARGS_H_
