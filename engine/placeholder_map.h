// Maps embeddings that do not come from token ids to tokens of a batch: images, audio and other
// inputs whose tokens are placeholders in the prompt.
//
// A range maps tokens [first_position, first_position + length) of a sequence to rows
// [first_source, first_source + length) of a tensor of embeddings. A step may compute only part of
// a range (chunked prefill), or none of it (cached tokens), and the batch may reorder the sequences
// (SplitBatch). The result is a list of copies:
//
//   // Tokens 4 .. 9 of sequence 1 are image rows 0 .. 5. This step computes its tokens 6 .. 13,
//   // and sequence 1 is the first row of the batch:
//   //   copy {first_token 0, first_source 2, length 4}
//   absl::StatusOr<int> num = MapPlaceholders(sequences, order, ranges, absl::MakeSpan(copies));
//
// Copies are sorted by token of the batch.
//
// Thread safety: pure functions. Cost: O(ranges + rows * log(ranges)). Does not allocate.

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

// Can be sent to ranks as bytes, like BatchSequence.
static_assert(std::is_trivially_copyable_v<PlaceholderRange>);

struct PlaceholderCopy {
  int first_token = 0;  // index in the batch
  int first_source = 0;
  int length = 0;

  friend bool operator==(const PlaceholderCopy&, const PlaceholderCopy&) = default;
};

// Writes the copies of the step, and returns their number. `order`: as in BatchRequest. Errors:
// InvalidArgument if ranges are not sorted by sequence and position, overlap, or have a negative
// field or an unknown sequence; if `order` has an index out of range; or if `copies` is too small.
// At most ranges.size() copies are needed if each sequence is in `order` once.
absl::StatusOr<int> MapPlaceholders(absl::Span<const BatchSequence> sequences,
                                    absl::Span<const int32_t> order,
                                    absl::Span<const PlaceholderRange> ranges,
                                    absl::Span<PlaceholderCopy> copies);

}  // namespace reprise

#endif  // REPRISE_ENGINE_PLACEHOLDER_MAP_H_
