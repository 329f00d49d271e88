// Computes the lengths and slots of one context-parallel rank from the global lengths and slots of
// a step.
//
// The lengths, blocks and slots of a step describe the tokens of all ranks, in blocks of block_size
// tokens. A rank keeps block_size / world tokens of each block, in a cache with blocks of that size
// and the same block ids. One scheduler, one block table and one set of slots therefore serve all
// ranks. With world 2, interleave 1 and block_size 4:
//
//   token of the block   0 1 2 3      global slot   block * 4 + 0 .. 3
//   rank                 0 1 0 1      rank's slot   block * 2 + 0 0 1 1; -1 on the other rank
//
//   RankRowsArgs args = {.ranks = ranks, .block_size = 32, .num_rows = 8, .num_tokens = 8,
//                        .seq_lens = arrays.seq_lens, ...};
//   REPRISE_RETURN_IF_ERROR(LaunchRankRows(args, stream));
//
// A batch over rank_seq_lens needs key_positions = ranks. It also needs query_positions, which hold
// positions in the whole sequence (attention/paged_batch.h).
//
// Thread safety: pure functions. Cost: linear in rows and slots; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_RANK_ROWS_H_
#define REPRISE_ATTENTION_METADATA_RANK_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/paged_batch.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Pointers are all on the host or all on the device. Outputs must not overlap inputs.
struct RankRowsArgs {
  KeyPositions ranks = {};
  int block_size = 0;  // tokens of a block, over all ranks; a multiple of CycleLen(ranks)
  int num_rows = 0;
  int num_tokens = 0;
  int num_groups = 1;
  int64_t group_stride = 0;               // elements between groups of slots; >= num_tokens
  const int32_t* seq_lens = nullptr;      // [num_rows] global lengths
  const int32_t* context_lens = nullptr;  // [num_rows] global lengths; or absent
  const int64_t* slot_mapping = nullptr;  // [num_groups, num_tokens] global slots; -1: no slot
  int32_t* rank_seq_lens = nullptr;       // [num_rows]
  int32_t* rank_context_lens = nullptr;   // [num_rows]; required with context_lens
  int64_t* rank_slot_mapping = nullptr;   // [num_groups, num_tokens], strides of slot_mapping
};

// Returns the rank's slot of the token with global slot `slot`, or -1 if another rank keeps the
// token or `slot` is negative. REQUIRES: valid ranks; block_size is a multiple of CycleLen(ranks).
constexpr int64_t RankSlot(int64_t slot, int block_size, const KeyPositions& ranks) {
  if (slot < 0) return -1;
  const int64_t offset = slot % block_size;  // blocks begin with a cycle
  if (!IsOwn(offset, ranks)) return -1;
  return slot / block_size * (block_size / ranks.world) + LocalIndex(offset, ranks);
}

// Checks the arguments of both forms. Does not read the arrays.
// Errors: InvalidArgument for invalid ranks, a block_size that is not a multiple of
// CycleLen(ranks), a negative size, a group_stride below num_tokens, or an absent array.
absl::Status CheckRankRows(const RankRowsArgs& args);

// Fills host arrays. REQUIRES: CheckRankRows(args).ok().
void RankRowsOnHost(const RankRowsArgs& args);

// Fills device arrays. May be captured: the grid depends only on the sizes.
// Errors: those of CheckRankRows(); Internal if the launch fails. Cost: one launch; no launch if
// there are neither rows nor tokens. Does not synchronise.
absl::Status LaunchRankRows(const RankRowsArgs& args, CUstream_st* stream);

// Write the lengths of a row, and the slot of a token in a group. Used by both forms.
constexpr void WriteRankRow(const RankRowsArgs& args, int64_t row) {
  args.rank_seq_lens[row] = static_cast<int32_t>(LocalLen(args.seq_lens[row], args.ranks));
  if (args.context_lens == nullptr) return;
  args.rank_context_lens[row] = static_cast<int32_t>(LocalLen(args.context_lens[row], args.ranks));
}
constexpr void WriteRankSlot(const RankRowsArgs& args, int64_t group, int64_t token) {
  const int64_t place = group * args.group_stride + token;
  args.rank_slot_mapping[place] = RankSlot(args.slot_mapping[place], args.block_size, args.ranks);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_RANK_ROWS_H_
