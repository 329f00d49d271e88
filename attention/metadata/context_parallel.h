// Decode context parallelism (vLLM's DCP): the mapping from the tokens of a sequence to ranks and
// local indices.
//
// Tokens are assigned to the ranks round-robin, in runs of `interleave`. With world 2 and
// interleave 2:
//
//   position   0 1 2 3 4 5 6 7 8        rank 0 holds 0 1 . . 4 5 . . 8   LocalLen(9, rank 0) = 5
//   owner      0 0 1 1 0 0 1 1 0        rank 1 holds 2 3 6 7             LocalLen(9, rank 1) = 4
//   local      0 1 0 1 2 3 2 3 4        GlobalPosition(2, rank 1) = 6
//
// Local key l of a rank is at index l of the rank's own cache and block table. Each rank runs all
// queries over its keys (BuildBatchGather() with key_positions makes the batch). Then out and lse
// of the ranks are merged (attention/merge/merge_states.h).
//
// All functions are pure and compute in int64. They are constexpr, so that nvcc compiles them for
// the device.

#ifndef REPRISE_ATTENTION_METADATA_CONTEXT_PARALLEL_H_
#define REPRISE_ATTENTION_METADATA_CONTEXT_PARALLEL_H_

#include <cstdint>

#include "reprise/attention/paged_batch.h"

namespace reprise {

// The keys that a rank attends to.
enum class KeyPart {
  kAll,      // all keys that the rank holds, including the keys of this step
  kContext,  // keys before this step; another call attends to this step's keys, and is merged
};

constexpr bool IsValid(const KeyPositions& ranks) {
  return ranks.world >= 1 && ranks.rank >= 0 && ranks.rank < ranks.world && ranks.interleave >= 1;
}

// Returns the number of tokens in one cycle over all ranks. All functions below REQUIRE valid ranks
// and non-negative arguments.
constexpr int64_t CycleLen(const KeyPositions& ranks) {
  return static_cast<int64_t>(ranks.world) * ranks.interleave;
}

// Returns the number of tokens that the rank holds among the first `num_tokens` tokens.
constexpr int64_t LocalLen(int64_t num_tokens, const KeyPositions& ranks) {
  if (ranks.world == 1) return num_tokens;
  const int64_t cycle = CycleLen(ranks);
  const int64_t rest = num_tokens % cycle - static_cast<int64_t>(ranks.rank) * ranks.interleave;
  const int64_t of_last = rest < 0 ? 0 : (rest < ranks.interleave ? rest : ranks.interleave);
  return num_tokens / cycle * ranks.interleave + of_last;
}

// Return the rank that holds the token at `position`, and the token's index on that rank.
constexpr int OwnerOf(int64_t position, const KeyPositions& ranks) {
  if (ranks.world == 1) return 0;
  return static_cast<int>(position / ranks.interleave % ranks.world);
}
constexpr int64_t LocalIndex(int64_t position, const KeyPositions& ranks) {
  if (ranks.world == 1) return position;
  return position / CycleLen(ranks) * ranks.interleave + position % ranks.interleave;
}

// Returns the position in the sequence of the rank's local token `local`: P(l) of
// attention/paged_batch.h.
constexpr int64_t GlobalPosition(int64_t local, const KeyPositions& ranks) {
  if (ranks.world == 1) return local;
  return (local / ranks.interleave * ranks.world + ranks.rank) * ranks.interleave +
         local % ranks.interleave;
}

// Returns the length of the longest sequence for which every rank holds at most `local_capacity`
// tokens. The result is the same on all ranks, so that all ranks clip the same drafts.
constexpr int64_t GlobalCapacity(int64_t local_capacity, const KeyPositions& ranks) {
  if (ranks.world == 1) return local_capacity;
  // After whole cycles, rank 0 takes the next tokens until it is full.
  return local_capacity / ranks.interleave * CycleLen(ranks) + local_capacity % ranks.interleave;
}

// Returns whether the rank holds the token at `position`.
constexpr bool IsOwn(int64_t position, const KeyPositions& ranks) {
  return OwnerOf(position, ranks) == ranks.rank;
}

// Replaces KeyPositions in code without ranks, so that the divisions above are not compiled.
struct WholeSequence {};

constexpr int64_t LocalLen(int64_t num_tokens, WholeSequence) { return num_tokens; }
constexpr int64_t LocalIndex(int64_t position, WholeSequence) { return position; }
constexpr bool IsOwn(int64_t, WholeSequence) { return true; }
constexpr int64_t GlobalCapacity(int64_t local_capacity, WholeSequence) { return local_capacity; }

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_CONTEXT_PARALLEL_H_
