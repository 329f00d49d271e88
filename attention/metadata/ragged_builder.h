// Builds batches over contiguous keys: for encoder self-attention, and for the profile run that
// sizes memory before the cache exists.
//
//   // Two encoder inputs of 3 and 2 tokens:
//   const int32_t lens[] = {3, 2};
//   absl::StatusOr<BuiltRaggedBatch> built =
//       BuildRaggedBatch({.lens = lens, .kind = RaggedKind::kEncoder}, buffers);
//   RaggedAttention(layer, built->batch, q, k, v, ...);
//
//   // A profile run of 8,192 tokens as 256 sequences:
//   FillProfileLens(8192, absl::MakeSpan(lens));   // 32 each
//   BuildRaggedBatch({.lens = lens, .kind = RaggedKind::kProfile}, buffers);
//
// Every token is a query and a key of its row:
//
//   kEncoder       sees all of its row, in both directions
//   kProfile       sees the row up to itself: the work of a prefill, with the layer's window, ALiBi
//                  and softcap
//   kProfileZeros  sees nothing: out is 0, lse is -inf, for engines that profile the memory of a
//                  step without its attention (as vLLM does)
//
// slot_mapping is all -1: nothing is written, and no cache is needed. Padded rows are empty, padded
// tokens inert.
//
// On a GPU, from lengths on the device: attention/metadata/ragged_builder_kernel.h.
//
// Thread safety: pure functions. Cost: linear in rows and tokens; no allocation.

#ifndef ATTENTION_METADATA_RAGGED_BUILDER_H_
#define ATTENTION_METADATA_RAGGED_BUILDER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/metadata/batch_builder.h"
#include "attention/ragged_batch.h"

namespace reprise {

enum class RaggedKind : int8_t { kEncoder, kProfile, kProfileZeros };

struct RaggedRequest {
  absl::Span<const int32_t> lens = {};  // tokens of each row
  RaggedKind kind = RaggedKind::kEncoder;
  std::optional<PaddedSize> padded = {};  // absent: the live size
};

// The caller's memory, sized for the largest batch.
struct RaggedBuffers {
  absl::Span<int32_t> query_start_loc;  // [max_rows + 1]
  absl::Span<int32_t> key_start_loc;    // [max_rows + 1]
  absl::Span<int32_t> positions;        // [max_tokens]
  absl::Span<int64_t> slot_mapping;     // [max_tokens]
};

// Views of the buffers, valid until the next build into them.
struct BuiltRaggedBatch {
  RaggedBatch batch;
  absl::Span<const int32_t> positions;     // [padded num_tokens] in the row; 0 of inert tokens
  absl::Span<const int64_t> slot_mapping;  // [padded num_tokens] -1
  int num_live_tokens = 0;
};

// Errors: InvalidArgument, naming the row, for a negative length; more rows or tokens than the
// padded size or the buffers hold.
absl::StatusOr<BuiltRaggedBatch> BuildRaggedBatch(const RaggedRequest& request,
                                                  const RaggedBuffers& buffers);

// Fills the lengths of a profile run: num_tokens over lens.size() sequences, whose lengths differ
// by at most one token. Errors: InvalidArgument for negative tokens, or tokens but no sequence.
absl::Status FillProfileLens(int num_tokens, absl::Span<int32_t> lens);

}  // namespace reprise

#endif  // ATTENTION_METADATA_RAGGED_BUILDER_H_
