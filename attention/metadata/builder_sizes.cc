#include "reprise/attention/metadata/builder_sizes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CheckGiven(std::initializer_list<NamedArray> arrays) {
  for (const NamedArray& array : arrays) {
    REPRISE_RETURN_IF_ERROR(CheckGiven(array.name, array.data));
  }
  return absl::OkStatus();
}

absl::Status CheckRowFaults(const int32_t* row_faults, int num_rows) {
  if (num_rows == 0) return absl::OkStatus();
  return CheckGiven("row_faults", row_faults);
}

absl::Status CheckOutputArrays(const BatchArrays& arrays, int num_rows, int num_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.query_start_loc", arrays.query_start_loc));
  if (num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(
        CheckGiven({{"arrays.seq_lens", arrays.seq_lens}, {"arrays.table_row", arrays.table_row}}));
  }
  if (num_tokens == 0) return absl::OkStatus();
  return CheckGiven(
      {{"arrays.positions", arrays.positions}, {"arrays.slot_mapping", arrays.slot_mapping}});
}

absl::Status CheckRowStride(std::string_view name, int64_t stride, int64_t width, int num_rows) {
  if (num_rows < 2) return absl::OkStatus();
  return CheckAtLeast(name, stride, width);
}

absl::Status CheckTable(const BlockTableView& table) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table.block_size", table.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table.num_tables", table.num_tables, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table.max_blocks", table.max_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table.num_blocks", table.num_blocks, 0));
  if (table.num_tables == 0 || table.max_blocks == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("table.entries", table.entries));
  return CheckRowStride("table.row_stride", table.row_stride, table.max_blocks, table.num_tables);
}

absl::Status CheckRanks(const KeyPositions& ranks) {
  if (IsValid(ranks)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key_positions: expected 0 <= rank < world and interleave >= 1, got rank ",
                   ranks.rank, ", world ", ranks.world, ", interleave ", ranks.interleave));
}

PagedBatch ArraysBatch(const BatchArrays& arrays, const BlockTableView& table, int num_rows,
                       int num_tokens, int max_query_len) {
  return {.query_start_loc = arrays.query_start_loc,
          .seq_lens = arrays.seq_lens,
          .table_row = arrays.table_row,
          .block_table = table.entries,
          .block_table_stride = table.row_stride,
          .num_rows = num_rows,
          .num_tokens = num_tokens,
          .max_query_len = max_query_len,
          .max_seq_len = static_cast<int>(TableCapacity(table)),
          .num_tables = table.num_tables,
          .max_blocks = table.max_blocks};
}

void FinishTokens(const BatchArrays& arrays, int num_rows, int num_tokens, int64_t num_live) {
  const int64_t end = std::min<int64_t>(num_live, num_tokens);
  arrays.query_start_loc[num_rows] = static_cast<int32_t>(end);
  for (int64_t token = end; token < num_tokens; ++token) WriteToken(arrays, token, {});
}

absl::Status FaultyRows::ToStatus(absl::FunctionRef<std::string(int row)> describe) const {
  if (count == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rows[", first_row, "]: ", View(ToString(first_fault)), ": ", describe(first_row)));
}

absl::Status FirstFault(const int32_t* row_faults, int num_rows,
                        absl::FunctionRef<std::string(int row)> describe) {
  FaultyRows faulty;
  for (int row = 0; row < num_rows; ++row) faulty.Add(row, static_cast<RowFault>(row_faults[row]));
  return faulty.ToStatus(describe);
}

}  // namespace reprise
