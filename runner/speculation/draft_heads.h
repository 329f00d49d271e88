// Heads that propose drafts from the model's hidden states: the kind of Medusa, Hydra and MLP
// speculators, which have no keys of their own.
//
//   class OneMatrixAPlace : public DraftHeads {      // Medusa: pass i has a matrix of its own
//     absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
//       return HeadsOutput{.logits = step.hidden.matmul(weights_[step.pass])};
//     }
//   };
//
// At the beginning of a step each slot has the hidden state that its newest token was chosen from, and
// that token. Pass 0 sees both and returns the logits of the first draft; pass i sees draft i - 1, and
// the hidden state that pass i - 1 returned. Drafts are drawn as tokens are, with the noise of their
// places. All passes are captured in the graph of the step: Forward() is bound as Model::Forward() is
// (runner/model.h), and a pass per draft of the key is made, whatever rows want.
//
// The model must return hidden states (Model::ForwardHidden). They are kept a slot in memory of the
// runner, at the cost of a copy of hidden_dim elements a row and step.
//
// Thread safety: one step at a time.

#ifndef RUNNER_SPECULATION_DRAFT_HEADS_H_
#define RUNNER_SPECULATION_DRAFT_HEADS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"

namespace reprise {

class LinearContext;

struct HeadsStep {
  at::Tensor hidden;     // [num_rows, hidden_dim] of the model's dtype
  at::Tensor token_ids;  // [num_rows] int32 what follows: the newest token, or the draft before
  int pass = 0;          // 0 to num_drafts - 1
  LinearContext* linears = nullptr;  // for products (runner/ops/linear.h)
};

struct HeadsOutput {
  at::Tensor logits;  // [num_rows, vocab_size] float32, float16 or bfloat16
  // What the next pass sees, as HeadsStep::hidden; undefined: the same again.
  at::Tensor hidden = {};
};

class DraftHeads {
 public:
  virtual ~DraftHeads() = default;

  // Rows that are padded, or have no drafts, are computed and not used. Errors fail the step.
  virtual absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) = 0;
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_DRAFT_HEADS_H_
