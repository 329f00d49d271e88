// Draft heads: small networks that propose drafts from the model's hidden states. There are two
// kinds: heads without a KV cache (Medusa, Hydra, MLP speculators), and heads with attention
// (EAGLE, MTP).
//
//   class OneMatrixPerPass : public DraftHeads {     // Medusa: each pass has its own matrix
//     absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
//       return HeadsOutput{.logits = step.hidden.matmul(weights_[step.pass])};
//     }
//   };
//
// At the start of a step, each slot holds its newest token and the hidden state that the token was
// sampled from. Pass 0 receives both and returns the logits of the first draft. Pass i receives
// draft i - 1 and the hidden state that pass i - 1 returned. Drafts are sampled like other tokens,
// with the noise of their positions. The step's graph contains all passes: Forward() must follow
// the capture rules of Model::Forward() (runner/model.h). A step runs one pass per draft of its
// graph key, even if its rows request fewer drafts.
//
// For a tree (SpeculationOptions::tree), each pass proposes one level. It samples one token per
// child index, each without the tokens sampled before. All nodes of the previous level get the same
// children. The next pass receives only the first of these tokens. Heads with layers propose
// chains.
//
// The model must pass its hidden states to Step::KeepHidden() (ModelSpec::hidden_dim). For heads
// without layers, the runner keeps one state per slot. Cost: copies of hidden_dim elements per row
// of logits and step.
//
// Heads with layers() attend over a sequence as a draft model does. Their KV layers follow the
// model's layers in the cache, so prefix hits, forks and swaps include their keys. The input of a
// token is the token and the hidden state of the previous token, which it was sampled from. The
// state is zeros if it is unknown, which is the case for:
//   - the first token of a sequence
//   - the first token after a prefix that another sequence computed
//   - cached tokens of which a joining sequence lacks the heads' keys (SlotJoin::num_undrafted)
//   - older tokens, if more tokens were decoded without drafts than states are kept
//
//   pass -1  a step with prefill chunks: processes all tokens and writes their keys
//   pass 0   processes the tokens of a row whose keys were not yet computed from the model's
//            states, up to the newest token, and proposes the first draft. This includes
//            drafts that were accepted: their keys are written again
//   pass i   processes draft i - 1 and the state that pass i - 1 returned
//
//   absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {       // EAGLE
//     at::Tensor x = at::cat({embedding_.index_select(0, step.token_ids), step.hidden}, 1);
//     ... q, k, v of x
//     REPRISE_ASSIGN_OR_RETURN(at::Tensor out, step.step->Attend(0, q, k, v));
//     ... y, then
//     y = y.index_select(0, step.step->logits_indices());
//     return HeadsOutput{.logits = y.matmul(lm_head_), .hidden = y};
//   }
//
// Thread safety: one step at a time.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_HEADS_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_HEADS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_spec.h"

namespace reprise {

class LinearContext;
class Step;

// With layers(), num_rows is the number of tokens of the pass.
struct HeadsStep {
  at::Tensor hidden;     // [num_rows, hidden_dim] of the model's dtype
  at::Tensor token_ids;  // [num_rows] int32 the newest token, or the previous pass's draft
  int pass = 0;          // 0, 1, ... as described above; with layers() also -1
  LinearContext* linears = nullptr;  // for GEMMs (runner/ops/linear.h)
  // With layers(): attention, positions, and the tokens whose logits are needed. Otherwise null.
  const Step* step = nullptr;
};

// With layers(), num_rows is the size of step->logits_indices(). The output of pass -1 is not read.
struct HeadsOutput {
  at::Tensor logits;  // [num_rows, vocab_size] float32, float16 or bfloat16
  // [num_rows, hidden_dim] input of the next pass (HeadsStep::hidden). Undefined: the input state
  // again.
  at::Tensor hidden = {};
};

class DraftHeads {
 public:
  virtual ~DraftHeads() = default;

  // The decoder layers of the heads; Step::Attend()'s `layer` indexes them. Empty: heads without a
  // KV cache. Layers may use windows or chunks, but the keys of whole sequences are kept, because
  // accepted drafts and tokens decoded without drafts are processed later. Must return the same
  // layers at each call, and the span must stay valid.
  virtual absl::Span<const LayerSpec> layers() const { return {}; }

  // Computes one pass. The output for padded rows and for rows without drafts is not used. Errors
  // fail the step.
  virtual absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_HEADS_H_
