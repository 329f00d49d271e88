// What the host forms of the speculative builders share: checks of sizes, the end of the arrays,
// and the first fault as a Status.
//
// Pure functions. Thread safety: const data but for the arrays. Cost: no allocation unless a check
// fails.

#ifndef ATTENTION_BUILDER_SIZES_H_
#define ATTENTION_BUILDER_SIZES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/batch_arrays.h"
#include "attention/paged_batch.h"
#include "attention/paged_table.h"

namespace reprise {

// "num_rows: expected at least 0, got -1".
absl::Status CheckSize(std::string_view name, int64_t got, int64_t least);

// "num_nodes: expected 1 to 64, got 65".
absl::Status CheckSize(std::string_view name, int64_t got, int64_t least, int64_t most);

absl::Status CheckTableSizes(const PagedTable& table);

absl::Status CheckRanks(const KeyPositions& ranks);

// Ends query_start_loc and makes the tokens behind the live ones inert. `num_live` may exceed
// num_tokens.
void FinishTokens(const BatchArrays& arrays, int num_rows, int num_tokens, int64_t num_live);

// OK, or "rows[3]: <fault>: <what `describe` says of it>" for the first row with a fault.
// REQUIRES: row_faults is there.
absl::Status FirstFault(const int32_t* row_faults, int num_rows,
                        absl::FunctionRef<std::string(int row)> describe);

}  // namespace reprise

#endif  // ATTENTION_BUILDER_SIZES_H_
