// Decode context parallelism (vLLM's DCP): which tokens of a sequence a rank holds, and where.
//
// Tokens go to the ranks in runs of `interleave`, in turn. With world 2 and interleave 2:
//
//   position   0 1 2 3 4 5 6 7 8        rank 0 holds 0 1 . . 4 5 . . 8   LocalLen(9, rank 0) = 5
//   owner      0 0 1 1 0 0 1 1 0        rank 1 holds 2 3 6 7             LocalLen(9, rank 1) = 4
//   local      0 1 0 1 2 3 2 3 4        GlobalPosition(2, rank 1) = 6
//
// Local key l of a rank stands in the rank's own cache and block table at position l. Each rank
// runs all queries over its keys (BuildChainBatch() with key_positions makes the batch); out and
// lse of the ranks are merged (attention/merge_states.h).
//
// Pure functions in int64, constexpr, so that nvcc compiles them for the device.

#ifndef ATTENTION_CONTEXT_PARALLEL_H_
#define ATTENTION_CONTEXT_PARALLEL_H_

#include <cstdint>

#include "attention/paged_batch.h"

namespace reprise {

constexpr bool IsValid(const KeyPositions& ranks) {
  return ranks.world >= 1 && ranks.rank >= 0 && ranks.rank < ranks.world && ranks.interleave >= 1;
}

// Tokens in a cycle of all ranks. All functions below REQUIRE valid ranks and nothing negative.
constexpr int64_t CycleLen(const KeyPositions& ranks) {
  return static_cast<int64_t>(ranks.world) * ranks.interleave;
}

// How many of the first `num_tokens` tokens the rank holds.
constexpr int64_t LocalLen(int64_t num_tokens, const KeyPositions& ranks) {
  if (ranks.world == 1) return num_tokens;
  const int64_t cycle = CycleLen(ranks);
  const int64_t rest = num_tokens % cycle - static_cast<int64_t>(ranks.rank) * ranks.interleave;
  const int64_t of_last = rest < 0 ? 0 : (rest < ranks.interleave ? rest : ranks.interleave);
  return num_tokens / cycle * ranks.interleave + of_last;
}

// The rank that holds the token at `position`, and its place among that rank's tokens.
constexpr int OwnerOf(int64_t position, const KeyPositions& ranks) {
  if (ranks.world == 1) return 0;
  return static_cast<int>(position / ranks.interleave % ranks.world);
}
constexpr int64_t LocalIndex(int64_t position, const KeyPositions& ranks) {
  if (ranks.world == 1) return position;
  return position / CycleLen(ranks) * ranks.interleave + position % ranks.interleave;
}

// Where local token `local` of the rank stands in the sequence: P(l) of attention/paged_batch.h.
constexpr int64_t GlobalPosition(int64_t local, const KeyPositions& ranks) {
  if (ranks.world == 1) return local;
  return (local / ranks.interleave * ranks.world + ranks.rank) * ranks.interleave +
         local % ranks.interleave;
}

// The longest sequence of which every rank has room for its share in `local_capacity` tokens: the
// same on all ranks, so that they agree on what to clip.
constexpr int64_t GlobalCapacity(int64_t local_capacity, const KeyPositions& ranks) {
  if (ranks.world == 1) return local_capacity;
  return local_capacity / ranks.interleave * CycleLen(ranks);
}

}  // namespace reprise

#endif  // ATTENTION_CONTEXT_PARALLEL_H_
