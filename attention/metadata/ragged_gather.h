// Builds batches over contiguous keys: for encoder self-attention, and for the profile run that
// sizes memory before the cache exists.
//
//   // Two encoder inputs of 3 and 2 tokens:
//   const int32_t lens[] = {3, 2};
//   RaggedGatherArgs args{.lens = lens, .kind = RaggedKind::kEncoder, .num_rows = 2,
//                         .num_tokens = 5, .max_len = 3, .query_start_loc = loc, ...};
//   absl::StatusOr<RaggedBatch> batch = BuildRaggedGather(args);
//   RaggedAttention(layer, *batch, q, k, v, ...);
//   // on a GPU: RaggedGatherBatch(args) once per shape, LaunchRaggedGather(args, stream) each step
//
//   // A profile run of 8,192 tokens as 256 sequences: .kind = RaggedKind::kProfile, and
//   FillProfileLens(8192, absl::MakeSpan(lens));   // 32 each
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
// A row that cannot be served becomes an empty row, with the reason in row_faults:
//   kLength    its length is outside 0 .. max_len
//   kNoRoom    its tokens, after those of the good rows before it, exceed num_tokens; then all
//              later rows with tokens have this fault too
//
// Thread safety: pure functions. Cost: linear in rows and tokens; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_RAGGED_GATHER_H_
#define REPRISE_ATTENTION_METADATA_RAGGED_GATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/ragged_gather_args.h"
#include "reprise/attention/ragged_batch.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// The batch over the arrays.
RaggedBatch RaggedGatherBatch(const RaggedGatherArgs& args);

// Checks the arguments for both forms; reads no array. Errors: InvalidArgument naming a negative
// size or an absent array.
absl::Status CheckRaggedGather(const RaggedGatherArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckRaggedGather(args) is OK.
void RaggedGatherOnHost(const RaggedGatherArgs& args);

// Calls CheckRaggedGather() and RaggedGatherOnHost(). Errors: InvalidArgument from the check, or
// for the first row with a fault, with its values; the arrays are then as the device leaves them.
absl::StatusOr<RaggedBatch> BuildRaggedGather(const RaggedGatherArgs& args);

// Does the same over device memory, in one launch; outputs overlap no input. No synchronisation;
// may be captured, because the grid depends only on num_tokens.
// Errors: those of CheckRaggedGather(); Internal if the launch fails.
absl::Status LaunchRaggedGather(const RaggedGatherArgs& args, CUstream_st* stream);

// Fills the lengths of a profile run: num_tokens over lens.size() sequences, whose lengths differ
// by at most one token. Errors: InvalidArgument for negative tokens, or tokens but no sequence.
absl::Status FillProfileLens(int num_tokens, absl::Span<int32_t> lens);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_RAGGED_GATHER_H_
