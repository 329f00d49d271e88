// Builds batches over contiguous keys, for encoder self-attention and for the profile run that
// sizes memory before the cache exists.
//
//   // Two encoder inputs of 3 and 2 tokens:
//   const int32_t lens[] = {3, 2};
//   RaggedGatherArgs args{.lens = lens, .kind = RaggedKind::kEncoder, .num_rows = 2,
//                         .num_tokens = 5, .max_len = 3, .query_start_loc = loc, ...};
//   absl::StatusOr<RaggedBatch> batch = BuildRaggedGather(args);
//   RaggedAttention(layer, *batch, work, q, {k, v}, ...);
//   // on a GPU: RaggedGatherBatch(args) once per shape, LaunchRaggedGather(args, stream) each step
//
//   // A profile run of 8,192 tokens in 256 sequences has .kind = RaggedKind::kProfile and
//   FillProfileLens(8192, absl::MakeSpan(lens));   // 32 tokens per sequence
//
// Every token is a query and a key of its row. RaggedKind selects the keys that a query sees:
//
//   kEncoder       all keys of the row
//   kProfile       the keys of the row up to its own: the work of a prefill, with the layer's
//                  window, ALiBi and softcap
//   kProfileZeros  no key: out is 0, lse is -inf. For engines that profile the memory of a step
//                  without its attention (as vLLM does)
//
// Every entry of slot_mapping is -1: no key is written, and no cache is needed. Padded rows are
// empty, and padded tokens are inert.
//
// An invalid row becomes an empty row, and row_faults, if present, holds the reason:
//   kLength    the row's length is outside 0 .. max_len
//   kNoRoom    the tokens of this row and all valid previous rows exceed num_tokens; then all later
//              rows with tokens have this fault too, unless they have kLength
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

// Returns the batch over the arrays.
RaggedBatch RaggedGatherBatch(const RaggedGatherArgs& args);

// Checks the arguments of both forms. Does not read the arrays. Errors: InvalidArgument for a
// negative size or an absent array.
absl::Status CheckRaggedGather(const RaggedGatherArgs& args);

// Fills host arrays, like LaunchRaggedGather() on the device.
// REQUIRES: CheckRaggedGather(args) is OK.
void RaggedGatherOnHost(const RaggedGatherArgs& args);

// Calls CheckRaggedGather() and RaggedGatherOnHost(), and returns the batch.
// Errors: InvalidArgument from the check, or for the first row with a fault, with its values. If a
// row has a fault, the arrays hold the same values as after the device form.
absl::StatusOr<RaggedBatch> BuildRaggedGather(const RaggedGatherArgs& args);

// Fills device arrays. May be captured: the grid depends only on num_tokens.
// REQUIRES: outputs do not overlap inputs.
// Errors: those of CheckRaggedGather(); Internal if the launch fails. Cost: one launch. Does not
// synchronise.
absl::Status LaunchRaggedGather(const RaggedGatherArgs& args, CUstream_st* stream);

// Fills the lengths of a profile run: distributes num_tokens over lens.size() sequences, whose
// lengths differ by at most one token.
// Errors: InvalidArgument if num_tokens is negative, or if there are tokens but no sequence.
absl::Status FillProfileLens(int num_tokens, absl::Span<int32_t> lens);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_RAGGED_GATHER_H_
