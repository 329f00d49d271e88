// Splits a scheduler's batch into decodes and prefills, for engines and kernels that process them
// separately.
//
//   std::vector<int32_t> order(sequences.size());
//   absl::StatusOr<BatchSplit> split = SplitBatch(sequences, {}, absl::MakeSpan(order));
//   // query_len {7, 1, 0, 1}: order {1, 3, 0, 2}, split->decode.num_rows == 2,
//   //   split->prefill.max_query_len == 7, split->num_empty_rows == 1
//
// Pass the order to BuildPagedBatch() (attention/metadata/batch_builder.h), and permute any other
// per-sequence data with it.
//
// Thread safety: pure functions. Cost: linear in the sequences; no allocation without an error.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_
#define REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/batch_sequence.h"

namespace reprise {

enum class SplitOrder { kDecodeFirst, kPrefillFirst };

// Which sequences count as decodes.
enum class DecodeLengths {
  kUpToThreshold,  // 1 .. decode_threshold new tokens
  kUniform,        // exactly decode_threshold, so that kernels can use [rows, decode_threshold]
};

struct SplitOptions {
  int decode_threshold = 1;  // new tokens; 1 + k if k drafts are verified
  DecodeLengths decode_lengths = DecodeLengths::kUpToThreshold;
  SplitOrder order = SplitOrder::kDecodeFirst;
};

// Sums and maxima over the rows of one kind. They are 0 if there is no such row.
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
  int num_empty_rows = 0;  // rows without new tokens, which are always last
};

// Fills order[new row] = index into `sequences`. Rows of one kind keep their relative order.
// Errors: InvalidArgument for a negative length, a total beyond int32, a threshold below 1, or if
// the lengths of `order` and `sequences` differ. On error `order` is unchanged.
absl::StatusOr<BatchSplit> SplitBatch(absl::Span<const BatchSequence> sequences,
                                      const SplitOptions& options, absl::Span<int32_t> order);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_SPLIT_H_
