#include "reprise/attention/merge/common_prefix.h"

#include <algorithm>

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

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

absl::Status CheckCommonPrefix(const CommonPrefixArgs& args) {
  const PagedBatch& batch = args.batch;
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", batch.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tables", batch.num_tables, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_blocks", batch.max_blocks, 0));
  if (batch.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      CheckGiven({{"query_start_loc", batch.query_start_loc}, {"seq_lens", batch.seq_lens}}));
  if (batch.num_tables == 0 || batch.max_blocks == 0) return absl::OkStatus();
  return CheckGiven({{"block_table", batch.block_table}});
}

int CommonPrefixOnHost(const CommonPrefixArgs& args) {
  const int len = Find(args);
  if (args.common_prefix_len) *args.common_prefix_len = len;
  return len;
}

}  // namespace reprise
