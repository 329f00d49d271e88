// Arguments of sampling over shards of the vocabulary, and the arithmetic that the host and device
// forms share (runner/sampling/shard_sampling.h). Files that include this header must be compiled
// without contraction (runner/sampling/sampling_rules.h). Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_ARGS_H_

#include <bit>
#include <cstdint>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/sampling/sampling_rules.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Maximum top_k that shards support. Each row sends the step's num_top keys, whatever its own
// top_k, so the largest top_k of a step determines the message size.
inline constexpr int kMaxShardTop = 256;

// Whether a row with these parameters can be sampled from the tops of shards. top_p without top_k
// may keep any number of tokens and needs all logits.
constexpr bool ShardsServe(const SamplingParams& params, int64_t vocab_size) {
  if (IsGreedy(params)) return true;
  if (!HasTopK(params, vocab_size)) return !HasTopP(params);
  return params.top_k <= kMaxShardTop;
}

// Returns the number of largest keys of a shard that the row needs; 0: the row needs no keys.
constexpr int ShardTopOf(const SamplingParams& params, int64_t vocab_size) {
  if (IsGreedy(params)) return 0;
  return HasTopK(params, vocab_size) ? params.top_k : 1;
}

// Number of words of a row's top in a shard. REQUIRES: num_top >= 1. For a row that needs k keys:
//   [0]       the k-th largest order key of the shard; 0 if it has fewer than k numbers
//   [1]       the number of logits with this key; 0 if there are none
//   [2 ...]   the keys above it, at most k - 1, in any order, then zeros
// All words are zero for rows that need no keys.
constexpr int ShardTopWords(int num_top) { return 1 + num_top; }

struct ShardSamplingArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* logits = nullptr;   // [num_rows, shard_size]: tokens [first_token, + shard_size)
  int64_t logits_stride = 0;      // elements between rows
  int num_rows = 0;
  int shard_size = 0;
  int first_token = 0;
  int vocab_size = 0;  // total over all shards
  int world = 1;       // number of shards
  // Number of keys in each row's top: at least the number that any row needs, at most kMaxShardTop.
  // 0: all rows are greedy, and there are no tops.
  int num_top = 0;
  SamplingSlots slots;
  const int32_t* sample_slot = nullptr;   // [num_rows] as for Sample()
  uint32_t* top = nullptr;                // [num_rows, 1 + num_top] of this shard
  const uint32_t* all_tops = nullptr;     // [world, num_rows, 1 + num_top]
  uint64_t* choices = nullptr;            // [num_rows] of this shard
  const uint64_t* all_choices = nullptr;  // [world, num_rows]
  int32_t* out = nullptr;                 // [num_rows]
};

// Returns the float of an order key other than 0; +0 for both zeros.
constexpr float FloatOfKey(uint32_t key) {
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// The keys of a row in the tops of all shards, and the number of logits for each key.
struct ShardKeys {
  const uint32_t* tops = nullptr;  // the row's top in the first shard
  int64_t stride = 0;              // words between shards
  int num_top = 0;
  int world = 1;

  constexpr int size() const { return world * num_top; }
  // 0: no key.
  constexpr uint32_t KeyOf(int i) const {
    const int place = i % num_top;
    return tops[i / num_top * stride + (place == 0 ? 0 : 1 + place)];
  }
  constexpr uint32_t CountOf(int i) const {
    return i % num_top == 0 ? tops[i / num_top * stride + 1] : 1;
  }
};

constexpr ShardKeys ShardKeysOf(const ShardSamplingArgs& args, int row) {
  const int64_t words = ShardTopWords(args.num_top);
  return {.tops = args.all_tops + row * words,
          .stride = args.num_rows * words,
          .num_top = args.num_top,
          .world = args.world};
}

// Returns the slot of a row; -1: the row does not sample.
constexpr int32_t SampledSlotOf(const ShardSamplingArgs& args, int row) {
  const int32_t slot = args.sample_slot[row];
  return slot < 0 || slot >= args.slots.num_slots ? -1 : slot;
}

// Stores the best of all shards' choices as the row's token, and advances the row's slot.
constexpr void TakeBestChoice(const ShardSamplingArgs& args, int row) {
  const int32_t slot = SampledSlotOf(args, row);
  if (slot == -1) {
    args.out[row] = kNotSampled;
    return;
  }
  uint64_t best = kNoChoice;
  for (int rank = 0; rank < args.world; ++rank) {
    const uint64_t choice = args.all_choices[int64_t{rank} * args.num_rows + row];
    if (choice > best) best = choice;
  }
  // The score of the best draw is a number, because the token of the largest logit is always kept.
  const int32_t token = CanBeChosen(best) ? TokenOf(best) : kNanRow;
  args.out[row] = token;
  args.slots.last_token[slot] = token == kNanRow ? 0 : token;
  args.slots.sample_index[slot] += 1;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_ARGS_H_
