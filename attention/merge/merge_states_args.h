// Arguments of a merge of partial attention results, and of a conversion of LSE formats; shared by
// the host and device forms (attention/merge/merge_states.h).

#ifndef REPRISE_ATTENTION_MERGE_MERGE_STATES_ARGS_H_
#define REPRISE_ATTENTION_MERGE_MERGE_STATES_ARGS_H_

#include <cstdint>

#include "reprise/attention/token_view.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Maximum number of parts per merge: the addresses of the parts are kernel arguments.
inline constexpr int kMaxMergeParts = 64;

// The lse of (token, head) is at data[token * token_stride + head * head_stride].
struct LseView {
  float* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  constexpr int64_t Offset(int64_t token, int64_t head) const {
    return token * token_stride + head * head_stride;
  }
};

// Views of [num_tokens, num_heads] and of [num_heads, num_tokens] arrays.
constexpr LseView TokensByHeads(float* data, int num_heads) { return {data, num_heads, 1}; }
constexpr LseView HeadsByTokens(float* data, int num_tokens) { return {data, 1, num_tokens}; }

struct MergeStatesArgs {
  // Parts differ only in their addresses.
  const void* part_out[kMaxMergeParts] = {};   // [num_tokens, num_heads, head_dim]
  const float* part_lse[kMaxMergeParts] = {};  // [num_tokens, num_heads], natural logarithm
  int num_parts = 0;
  TokenView part = {};         // dtype and strides of every part_out; data is not used
  LseView part_lse_view = {};  // strides of every part_lse; data is not used

  TokenView out = {};  // [num_tokens, num_heads, head_dim]
  LseView lse = {};    // null data: not written
  // [num_heads] a logit per head without a value, not included in any part; may be absent.
  const float* sinks = nullptr;

  int num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
};

// The lse of `part` for (token, head).
constexpr float PartLse(const MergeStatesArgs& args, int part, int64_t token, int64_t head) {
  return args.part_lse[part][args.part_lse_view.Offset(token, head)];
}

enum class LogBase {
  kNatural,
  kTwo,
};

struct ConvertLseArgs {
  // `from` and `to` may share memory only if their strides are equal.
  LseView from = {};
  LogBase from_base = LogBase::kNatural;
  LseView to = {};
  LogBase to_base = LogBase::kNatural;
  int num_tokens = 0;
  int num_heads = 0;
};

// The factor that converts a logarithm in from_base to a logarithm in to_base.
constexpr float LogFactor(const ConvertLseArgs& args) {
  if (args.from_base == args.to_base) return 1.0f;
  constexpr float kLog2OfE = 1.4426950408889634f;
  constexpr float kLogOf2 = 0.6931471805599453f;
  return args.to_base == LogBase::kTwo ? kLog2OfE : kLogOf2;
}

constexpr void ConvertLseAt(const ConvertLseArgs& args, float factor, int64_t token, int64_t head) {
  args.to.data[args.to.Offset(token, head)] =
      factor * args.from.data[args.from.Offset(token, head)];
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_MERGE_STATES_ARGS_H_
