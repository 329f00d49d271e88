// Helpers for the host forms of the builders: checks of tables and arrays (for checks of sizes see
// base/check.h), the batch over the arrays, inert tokens after the live ones, and a Status for the
// first fault.
//
// Pure functions. Thread safety: const data except for the arrays. Cost: no allocation unless a
// check fails.

#ifndef REPRISE_ATTENTION_METADATA_BUILDER_SIZES_H_
#define REPRISE_ATTENTION_METADATA_BUILDER_SIZES_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// An array of a builder's arguments, and the name of the argument.
struct NamedArray {
  std::string_view name;
  const void* data = nullptr;
};

// Errors: InvalidArgument for the first absent array: "slots: expected an array, got none".
absl::Status CheckGiven(std::initializer_list<NamedArray> arrays);

// Checks that row_faults is present if there are rows. The host forms read row_faults to name the
// first row with a fault.
absl::Status CheckRowFaults(const int32_t* row_faults, int num_rows);

// Checks that the arrays that every builder writes are present: query_start_loc, the arrays by row
// if there are rows, and the arrays by token if there are tokens.
absl::Status CheckOutputArrays(const BatchArrays& arrays, int num_rows, int num_tokens);

// Checks that rows do not overlap: "token_stride: expected at least 4, got 0". With fewer than two
// rows any stride is valid.
absl::Status CheckRowStride(std::string_view name, int64_t stride, int64_t width, int num_rows);

// Checks the sizes of the table. If the table has entries, also checks their presence and stride.
absl::Status CheckTable(const BlockTableView& table);

absl::Status CheckRanks(const KeyPositions& ranks);

// Returns the causal batch over the arrays. Its max_seq_len is the table's capacity.
PagedBatch ArraysBatch(const BatchArrays& arrays, const BlockTableView& table, int num_rows,
                       int num_tokens, int max_query_len);

// Writes the last entry of query_start_loc, and makes the tokens after the live ones inert.
// `num_live` may exceed num_tokens.
void FinishTokens(const BatchArrays& arrays, int num_rows, int num_tokens, int64_t num_live);

// Number of rows with a fault, and the first such row.
struct FaultyRows {
  int32_t count = 0;
  int first_row = 0;
  RowFault first_fault = RowFault::kNone;

  void Add(int row, RowFault fault) {
    if (fault == RowFault::kNone) return;
    if (count++ > 0) return;
    first_row = row;
    first_fault = fault;
  }

  // Returns OK, or InvalidArgument "rows[3]: <fault>: <result of `describe`>".
  absl::Status ToStatus(absl::FunctionRef<std::string(int row)> describe) const;
};

// Like FaultyRows::ToStatus(), for builders that read the faults from row_faults.
// REQUIRES: row_faults is present if there are rows.
absl::Status FirstFault(const int32_t* row_faults, int num_rows,
                        absl::FunctionRef<std::string(int row)> describe);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BUILDER_SIZES_H_
