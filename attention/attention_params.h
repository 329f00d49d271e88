// Parameters of a layer's attention that do not depend on the batch: heads, scaling, window, and
// the terms of the logits.
//
// For query q of head h at position p, and a visible key k at position P (attention/paged_batch.h):
//
//   s = scale * q_scale * q_head_scales[h] * k_scale * dot(rope(q, p), rope(k, P))
//                                                                  rope: identity without `rotary`
//   s = softcap * tanh(s / softcap)                                if softcap is above 0
//   s = s - alibi_slopes[t, h] * |p - P|                           if alibi_slopes is set
//   out = v_scale * sum_k exp(s) * v / Z,  lse = log(Z)            natural logarithm
//   Z = sum_k exp(s) + exp(sinks[h])                               the second term if sinks is set
//
// t is the row's table row. q head h reads KV head h / group_size. k_scale and v_scale are in the
// KvLayer, next to the data that they scale. If the last dims of keys are a separate tensor
// (KvLayer::rope), rope_scale replaces k_scale in their part of the dot product. ALiBi follows
// FlashAttention: it is applied after the soft cap, and uses the absolute distance. Sinks follow
// gpt-oss: one logit per head, without a value.
//
// A value. Pointers are on the device of the queries, and must stay valid for all calls and graphs
// that use them.

#ifndef REPRISE_ATTENTION_ATTENTION_PARAMS_H_
#define REPRISE_ATTENTION_ATTENTION_PARAMS_H_

#include <cmath>
#include <cstdint>
#include <optional>

#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Rotary embedding of q and k inside the kernel, for caches that hold unrotated keys. Uses Llama's
// layout (GPT-NeoX pairs): dims d and d + rotary_dim / 2 are rotated by position / rope_scale *
// rope_theta^(-2d / rotary_dim). Dims at or above rotary_dim are unchanged.
struct RotaryParams {
  float rope_scale = 1.0f;
  float rope_theta = 1e4f;
  int rotary_dim = 0;  // even; 0: all of head_dim_qk
};

// Block-sparse decode of vLLM's PagedAttention: a head sees the last `local_blocks` sparse blocks,
// and every `vertical_stride`-th block before them. The sparse block of a position is
// floor(position / block_size). Query block qb sees key block kb if
//
//   kb > qb - local_blocks  or  (kb + off) % vertical_stride == 0,
//   off = (tp_rank * num_q_heads + q_head) * head_sliding_step + 1      if head_sliding_step >= 0,
//   off = (tp_rank * num_kv_heads + kv_head) * -head_sliding_step + 1   otherwise.
struct BlockSparseParams {
  int local_blocks = 0;
  int vertical_stride = 1;  // at least 0; sparse only if above 1
  int block_size = 64;      // tokens per sparse block; a multiple of the cache's block_size
  int head_sliding_step = 0;
  int tp_rank = 0;
};

// How a model or an engine counts the tokens of its window.
enum class WindowCount : int8_t {
  kTokens,      // includes the query's token: Hugging Face sliding_window, Mistral, Gemma, gpt-oss
  kKeysBefore,  // excludes it: FlashInfer and FlashAttention window_left, SGLang's model runner
};

// Returns AttentionParams::window_left for a window in the given count. An absent window, a
// negative window and a window of 0 tokens mean no window.
//
//   WindowLeft(4096, WindowCount::kTokens)       // 4095: Mistral's sliding_window
//   WindowLeft(4095, WindowCount::kKeysBefore)   // 4095
constexpr std::optional<int> WindowLeft(std::optional<int> window, WindowCount count) {
  if (!window || *window < 0) return std::nullopt;
  if (count == WindowCount::kKeysBefore) return *window;
  if (*window == 0) return std::nullopt;
  return *window - 1;
}

struct AttentionParams {
  int num_q_heads = 0;  // a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  std::optional<float> scale = {};       // absent: 1 / sqrt(head_dim_qk)
  std::optional<int> window_left = {};   // keys before the query's key: W - 1 for W tokens
  std::optional<int> window_right = {};  // keys after the query's key; causal rows imply 0
  std::optional<float> softcap = {};     // 0: none
  // [num_q_heads]; or per sequence, [table rows, num_q_heads], with alibi_row_stride elements
  // between rows. The stride is 0 or at least num_q_heads.
  const float* alibi_slopes = nullptr;
  int64_t alibi_row_stride = 0;
  const float* sinks = nullptr;          // [num_q_heads]
  Scale q_scale = {};                    // head_stride per kv head
  const float* q_head_scales = nullptr;  // [num_q_heads], in addition to q_scale; absent: 1
  std::optional<RotaryParams> rotary = {};
  std::optional<BlockSparseParams> sparse = {};

  bool has_softcap() const { return softcap.value_or(0.0f) > 0.0f; }
  bool is_sparse() const { return sparse && sparse->vertical_stride > 1; }
  int group_size() const { return num_q_heads / num_kv_heads; }
  float resolved_scale() const {
    return scale.value_or(1.0f / std::sqrt(static_cast<float>(head_dim_qk)));
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_PARAMS_H_
