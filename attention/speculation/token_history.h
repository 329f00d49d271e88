// Views of the token ids of sequences, which drafters read, and of the token ids of cache slots.
//
// The caller owns the memory, on the host or on the device. No LibTorch.

#ifndef REPRISE_ATTENTION_SPECULATION_TOKEN_HISTORY_H_
#define REPRISE_ATTENTION_SPECULATION_TOKEN_HISTORY_H_

#include <cstdint>

namespace reprise {

// [num_slots, stride] token ids of each sequence by position, for positions below its seq_len.
// -1: unknown, because another sequence computed the token and no block kept its id.
struct TokenHistory {
  int32_t* tokens = nullptr;
  int64_t stride = 0;

  constexpr int32_t* row(int32_t slot) const { return tokens + slot * stride; }
};

// [num_places] token id of each cache slot of one KV group. The history of a sequence that begins
// with blocks of other sequences is read from here (runner/speculation/block_tokens.h).
struct PlaceTokens {
  int32_t* tokens = nullptr;  // null: tokens are not kept
  int64_t num_places = 0;
  int group = 0;

  // Stores the token whose keys are in cache slot `place`. Ignores slots outside [0, num_places).
  constexpr void Keep(int64_t place, int32_t token) const {
    if (place >= 0 && place < num_places) tokens[place] = token;
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TOKEN_HISTORY_H_
