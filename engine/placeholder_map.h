// Maps embeddings that do not come from token ids to tokens of a batch: images, audio and other
// inputs whose tokens are placeholders in the prompt.
//
// A range maps tokens [first_position, first_position + length) of a sequence to rows
// [first_source, first_source + length) of a tensor of embeddings. A step may hold only part of a
// range (chunked prefill), or none of it (the range is already cached), and the batch may have the
// sequences in another order (SplitBatch). The result is a list of copies:
//
//   // Sequence 1's tokens 4 .. 9 are image rows 0 .. 5; this step computes its tokens 6 .. 13, and
//   // the batch begins with it:
//   //   copy {first_token 0, first_source 2, length 4}
//   absl::StatusOr<int> num = MapPlaceholders(sequences, order, ranges, absl::MakeSpan(copies));
//
// Copies are in the order of the batch's tokens.
//
// Thread safety: pure functions. Cost: rows times the logarithm of ranges; no allocation.

#ifndef REPRISE_ENGINE_PLACEHOLDER_MAP_H_
#define REPRISE_ENGINE_PLACEHOLDER_MAP_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/batch_sequence.h"

namespace reprise {

struct PlaceholderRange {
  int sequence = 0;  // index into the step's sequences
  int first_position = 0;
  int length = 0;
  int first_source = 0;  // row of the embeddings
};

// May be sent to ranks as bytes, like BatchSequence.
static_assert(std::is_trivially_copyable_v<PlaceholderRange>);

struct PlaceholderCopy {
  int first_token = 0;  // of the batch
  int first_source = 0;
  int length = 0;

  friend bool operator==(const PlaceholderCopy&, const PlaceholderCopy&) = default;
};

// Writes the copies of the step; returns how many. `order` as in BatchRequest. Errors:
// InvalidArgument for ranges that are not sorted by sequence and position, overlap, or have a
// negative number or an unknown sequence; an index out of range in `order`; more copies than
// `copies` holds (never more than ranges, if each sequence is in `order` once).
absl::StatusOr<int> MapPlaceholders(absl::Span<const BatchSequence> sequences,
                                    absl::Span<const int32_t> order,
                                    absl::Span<const PlaceholderRange> ranges,
                                    absl::Span<PlaceholderCopy> copies);

}  // namespace reprise

#endif  // REPRISE_ENGINE_PLACEHOLDER_MAP_H_
