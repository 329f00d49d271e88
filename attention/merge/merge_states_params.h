// A merge of partial attention results, in plain values; shared by the host and device forms
// (attention/merge/merge_states.h).

#ifndef ATTENTION_MERGE_MERGE_STATES_PARAMS_H_
#define ATTENTION_MERGE_MERGE_STATES_PARAMS_H_

#include <cstdint>

#include "attention/token_view.h"
#include "base/dtype.h"

namespace reprise {

// Maximum parts of one merge: their addresses are kernel arguments.
inline constexpr int kMaxMergeParts = 64;

// lse of (token, head) at data[token * token_stride + head * head_stride]: [tokens, heads] has
// strides {num_heads, 1}, [heads, tokens] has {1, num_tokens}.
struct LseView {
  float* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct MergeStatesParams {
  // Parts differ only in their addresses.
  const void* part_out[kMaxMergeParts] = {};   // [num_tokens, num_heads, head_dim]
  const float* part_lse[kMaxMergeParts] = {};  // [num_tokens, num_heads], natural logarithm
  int num_parts = 0;
  TokenView part = {};         // dtype and strides of every part_out; data is not used
  LseView part_lse_view = {};  // strides of every part_lse; data is not used

  TokenView out = {};  // [num_tokens, num_heads, head_dim]
  LseView lse = {};    // data may be absent
  // [num_heads] a logit per head without a value, not included in any part; or absent.
  const float* sinks = nullptr;

  int num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
};

// The part's lse of (token, head).
constexpr float PartLse(const MergeStatesParams& params, int part, int64_t token, int64_t head) {
  return params.part_lse[part][token * params.part_lse_view.token_stride +
                               head * params.part_lse_view.head_stride];
}

}  // namespace reprise

#endif  // ATTENTION_MERGE_MERGE_STATES_PARAMS_H_
