// Builds a PagedBatch from a scheduler's sequences and their block table, for decode, prefill,
// chunked prefill and any mixture of the three.
//
//   // Two sequences in table rows 4 and 0, with 17 and 0 cached tokens and 1 and 5 new tokens:
//   std::vector<BatchSequence> sequences = {{4, 17, 1}, {0, 0, 5}};
//   absl::StatusOr<BuiltBatch> built =
//       builder.Build({.sequences = sequences, .table = table, .padded = PaddedSize{4, 8}});
//   PagedAttention(layer, built->batch, ...);   WriteKv(kv, k, v, built->slot_mapping);
//
// The table is never copied: rows refer to it through table_row. Entries beyond a sequence's length
// (look-ahead blocks) are not read. For kernels that need a separate table, padded or packed, see
// attention/metadata/batch_tables.h.
//
//   array            live rows and tokens                    padded
//   query_start_loc  prefix sums of query_len                the number of live tokens
//   seq_lens         num_computed + query_len                0
//   table_row        BatchSequence::table_row                0
//   key_start        BatchSequence::key_start, if the        0
//                    buffers have key_start
//   positions        num_computed + i                        0
//   slot_mapping     block * block_size + offset; -1 if the  -1
//                    entry is the null block, and before
//                    the write_window
//
// A sequence with no new token (query_len 0) becomes an empty row: its seq_len is 0, and no query
// attends to its keys. Padded and empty rows have seq_len kPaddedSeqLen.
//
// Set key_start if other tokens precede the sequence's tokens in its table row, such as its
// encoder's tokens (attention/metadata/cross_batch.h). Blocks are then looked up at
// key_start + position. `positions` are the model's positions and count from the sequence's first
// token. They differ from query_positions if key_start is not 0.
//
// The device form is attention/metadata/batch_gather.h.
//
// Thread safety: BuildPagedBatch() is a pure function; BatchBuilder is not thread-safe and has one
// owner. Cost: linear in rows and padded tokens; no allocation after Create() without an error.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_BUILDER_H_
#define REPRISE_ATTENTION_METADATA_BATCH_BUILDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/batch_sequence.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// The seq_len of padded and empty rows.
inline constexpr int32_t kPaddedSeqLen = 0;

// The captured size of a batch. Rows and tokens beyond the live ones are inert.
struct PaddedSize {
  int num_rows = 0;
  int num_tokens = 0;
};

struct BatchRequest {
  absl::Span<const BatchSequence> sequences = {};
  // For each row of the batch, an index into `sequences`, from SplitBatch(). Empty: one row per
  // sequence, in the order of `sequences`.
  absl::Span<const int32_t> order = {};
  BlockTableView table = {};              // on the host; num_blocks is not used
  std::optional<PaddedSize> padded = {};  // absent: no padding
  // Number of last new tokens of each sequence that are written; at least 1. Absent: all. Only for
  // prefills that attend to contiguous keys (RaggedBatch) in layers with a window of this size. If
  // attention reads the cache instead, the first queries lack keys.
  std::optional<int> write_window = {};
};

// The caller's memory for the batch, sized for the largest batch.
struct BatchBuffers {
  absl::Span<int32_t> query_start_loc;  // [max_rows + 1]
  absl::Span<int32_t> seq_lens;         // [max_rows]
  absl::Span<int32_t> table_row;        // [max_rows]
  absl::Span<int32_t> positions;        // [max_tokens]
  absl::Span<int64_t> slot_mapping;     // [max_tokens]
  absl::Span<int32_t> key_start = {};   // [max_rows]; empty: every sequence's key_start is 0
};

// Views of the buffers, valid until the next build into them.
struct BuiltBatch {
  PagedBatch batch;                        // causal; max_query_len and max_seq_len of live rows
  absl::Span<const int32_t> positions;     // [padded num_tokens]
  absl::Span<const int64_t> slot_mapping;  // [padded num_tokens]
  int num_live_rows = 0;
  int num_live_tokens = 0;
};

// Builds the batch in `buffers`.
// Errors: InvalidArgument that names the row, the expected and the actual value, for a negative
// length, a table row outside the table, positions beyond the table's width, a negative table entry
// for a new token, an index out of range in `order`, a key_start that is negative or without a
// buffer, a write_window below 1, an invalid table, or more rows or tokens than the padded size or
// the buffers hold. Only the lengths of a sequence without new tokens are checked. On error the
// content of the buffers is undefined.
absl::StatusOr<BuiltBatch> BuildPagedBatch(const BatchRequest& request,
                                           const BatchBuffers& buffers);

enum class KeyStarts : int8_t { kNone, kGiven };

struct BatchBuilderOptions {
  int max_rows = 0;
  int max_tokens = 0;
  KeyStarts key_starts = KeyStarts::kNone;  // whether sequences may have a key_start
};

// Calls BuildPagedBatch() with buffers that the builder owns.
class BatchBuilder {
 public:
  // Errors: InvalidArgument for a negative size.
  static absl::StatusOr<BatchBuilder> Create(const BatchBuilderOptions& options);

  BatchBuilder(BatchBuilder&&) = default;
  BatchBuilder& operator=(BatchBuilder&&) = default;

  // Builds a batch. The result is valid until the next Build(). Errors: those of BuildPagedBatch().
  absl::StatusOr<BuiltBatch> Build(const BatchRequest& request);

 private:
  explicit BatchBuilder(const BatchBuilderOptions& options);

  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> table_row_;
  std::vector<int32_t> key_start_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slot_mapping_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_BUILDER_H_
