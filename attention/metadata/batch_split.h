// Splits a scheduler's batch into decodes and prefills, for engines and kernels that treat them
// apart.
//
//   std::vector<int32_t> order(sequences.size());
//   absl::StatusOr<BatchSplit> split = SplitBatch(sequences, {}, absl::MakeSpan(order));
//   // query_len {7, 1, 0, 1}: order {1, 3, 0, 2}, split->decode.num_rows == 2,
//   //   split->prefill.max_query_len == 7, split->num_empty_rows == 1
//
// The order goes to BuildPagedBatch() (attention/metadata/batch_builder.h), and permutes any other
// per-sequence data of the caller.
//
// Thread safety: pure functions. Cost: two passes; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_
#define REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/batch_sequence.h"

namespace reprise {

enum class SplitOrder { kDecodeFirst, kPrefillFirst };

// Which sequences with few new tokens are decodes.
enum class DecodeLengths {
  kUpToThreshold,  // 1 .. decode_threshold new tokens
  kUniform,        // exactly decode_threshold, so that kernels may take [rows, decode_threshold]
};

struct SplitOptions {
  int decode_threshold = 1;  // 1 + k if drafts of k tokens are verified
  DecodeLengths decode_lengths = DecodeLengths::kUpToThreshold;
  SplitOrder order = SplitOrder::kDecodeFirst;
};

// Sums and maxima over the rows of one kind; all 0 if there are none.
struct BatchKind {
  int first_row = 0;  // in the new order
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;

  friend bool operator==(const BatchKind&, const BatchKind&) = default;
};

struct BatchSplit {
  BatchKind decode;
  BatchKind prefill;
  int num_empty_rows = 0;  // without new tokens; they are always last
};

// Fills order[new row] = index into `sequences`; rows of one kind keep their relative order.
// Errors, with `order` unchanged: InvalidArgument for a negative length, a total beyond int32, a
// threshold below 1, or an `order` of another length than `sequences`.
absl::StatusOr<BatchSplit> SplitBatch(absl::Span<const BatchSequence> sequences,
                                      const SplitOptions& options, absl::Span<int32_t> order);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_
