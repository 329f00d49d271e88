// Unstable: any version may change this header (docs/embedding.md).
//
// The choice of experts for each token, from the logits of a router.
//
//   s = softmax(logits) or sigmoid(logits)                            RouterScores
//   c = s + choice_bias                                               if there is such a bias
//   c = -infinity outside the num_chosen_groups best groups           if groups are limited
//   e_1 .. e_k = the experts of the num_chosen largest c
//   w_i = s[e_i]                                                      normalises = false
//   w_i = s[e_i] / (sum_j s[e_j] + sum_epsilon)                       sigmoid, normalises
//   w_i = softmax of the chosen logits                                softmax, normalises
//   routing weights = scale * w
//
// If the order of the logits is the order of c, the code compares the logits, which do not
// saturate. Sources: DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437), and the
// routers of transformers' modeling files.
//
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_MOE_ROUTING_H_
#define REPRISE_MODELS_MOE_ROUTING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "reprise/models/moe/experts_config.h"

namespace reprise {

// The chosen experts of each token.
struct Routing {
  at::Tensor experts;  // [num_tokens, num_chosen] int64, the best expert first
  at::Tensor weights;  // [num_tokens, num_chosen] float32
};

// Whether results of a token must be bitwise independent of the other tokens.
enum class RowOrder : int8_t {
  kAny,    // LibTorch may choose the order of a sum by the number of tokens
  kFixed,  // more launches, and on the CPU one call per token
};

// Chooses experts. logits [num_tokens, num_experts] float32; choice_bias [num_experts] float32,
// present if the config has one. Experts are distinct and in range, also if logits are NaN, which
// counts as the largest score. If fewer than num_chosen allowed scores exceed -infinity, experts of
// other groups may be chosen. Among equal scores at::topk() decides, by the token's scores alone:
// it need not choose the lowest index, and devices may differ. Does not synchronise; may be
// captured. REQUIRES: CheckExperts(config) is OK. Throws LibTorch's exceptions.
Routing ChooseExperts(const ExpertsConfig& config, const at::Tensor& logits,
                      const std::optional<at::Tensor>& choice_bias, RowOrder order);

// Replaces x [num_tokens, size] float32 by its sigmoid. Returns x. Throws LibTorch's exceptions.
at::Tensor SigmoidInPlace(at::Tensor x, RowOrder order);

}  // namespace reprise

#endif  // REPRISE_MODELS_MOE_ROUTING_H_
