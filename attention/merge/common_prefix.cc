#include "attention/merge/common_prefix.h"

#include <algorithm>

namespace reprise {
namespace {

int Find(const CommonPrefixArgs& args) {
  const PagedBatch& batch = args.batch;
  PrefixRow first;
  int64_t num_keys = -1;
  for (int r = 0; r < batch.num_rows; ++r) {
    const PrefixRow row = PrefixRowOf(args, r);
    if (row.num_keys < 0) continue;
    if (num_keys < 0) {
      first = row;
      num_keys = row.num_keys;
    }
    if (row.key_start != first.key_start) return 0;
    num_keys = std::min(num_keys, row.num_keys);
  }
  if (num_keys <= 0) return 0;

  PrefixColumns columns = PrefixColumnsOf(args, num_keys, first.key_start);
  const int32_t* of_first = batch.block_table + first.table_row * batch.block_table_stride;
  for (int r = 0; r < batch.num_rows && columns.end > columns.first; ++r) {
    const PrefixRow row = PrefixRowOf(args, r);
    if (row.num_keys < 0) continue;
    const int32_t* of_row = batch.block_table + row.table_row * batch.block_table_stride;
    const auto differs =
        std::mismatch(of_first + columns.first, of_first + columns.end, of_row + columns.first);
    columns.end = static_cast<int>(differs.first - of_first);
  }
  return PrefixLen(args, columns.end, first.key_start);
}

}  // namespace

int CommonPrefixLen(const CommonPrefixArgs& args) {
  const int len = Find(args);
  if (args.common_prefix_len) *args.common_prefix_len = len;
  return len;
}

}  // namespace reprise
