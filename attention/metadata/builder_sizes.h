// Shared by the host forms of the builders: checks of tables and arrays (base/check.h has those of
// sizes), the batch over the arrays, their end, and the first fault as a Status.
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

// An array of a builder's arguments and its name there.
struct NamedArray {
  std::string_view name;
  const void* data = nullptr;
};

// "slots: expected an array, got none" for the first of them that is absent.
absl::Status CheckGiven(std::initializer_list<NamedArray> arrays);

// Checks that row_faults is present if there are rows: the host forms read it to name the row at
// fault.
absl::Status CheckRowFaults(const int32_t* row_faults, int num_rows);

// Checks that the arrays that every builder writes are present: query_start_loc, and the arrays of
// rows and tokens if there are any.
absl::Status CheckOutputArrays(const BatchArrays& arrays, int num_rows, int num_tokens);

// Checks that rows do not overlap: "token_stride: expected at least 4, got 0". The stride of a
// single row is not used.
absl::Status CheckRowStride(std::string_view name, int64_t stride, int64_t width, int num_rows);

// Checks the sizes of the table, and its entries and their stride if there are any.
absl::Status CheckTable(const BlockTableView& table);

absl::Status CheckRanks(const KeyPositions& ranks);

// The causal batch over the arrays; max_seq_len is the table's capacity.
PagedBatch ArraysBatch(const BatchArrays& arrays, const BlockTableView& table, int num_rows,
                       int num_tokens, int max_query_len);

// Ends query_start_loc and makes the tokens after the live ones inert. `num_live` may exceed
// num_tokens.
void FinishTokens(const BatchArrays& arrays, int num_rows, int num_tokens, int64_t num_live);

// The rows of a batch that have a fault: their number, and the first of them.
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

  // OK, or "rows[3]: <fault>: <result of `describe`>".
  absl::Status ToStatus(absl::FunctionRef<std::string(int row)> describe) const;
};

// The same for builders whose rows are read from row_faults.
// REQUIRES: row_faults is present if there are rows.
absl::Status FirstFault(const int32_t* row_faults, int num_rows,
                        absl::FunctionRef<std::string(int row)> describe);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BUILDER_SIZES_H_
