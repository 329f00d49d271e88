// Heads that propose drafts from the model's hidden states: the kind of Medusa, Hydra and MLP
// speculators, which have no keys of their own, and the kind of EAGLE and MTP, which attend.
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
// Of a tree (SpeculationOptions::tree) a pass proposes a level: the likeliest token, then the likeliest
// without that one, as many as follow a node. They are the same behind all nodes of the level before; a
// pass sees the first of those that the pass before proposed. Heads with layers propose chains.
//
// The model must give its hidden states to Step::KeepHidden() (ModelSpec::hidden_dim). The runner
// keeps one per slot: a copy of hidden_dim elements per row and step.
//
// Heads with layers() attend over a sequence as a draft model does: their layers follow the model's
// among those of the cache, so prefixes, forks and swaps keep their keys. A token's input is the token
// and the hidden state of the token before it, which it was chosen from; zeros where that is not known:
// of a sequence's first token, of the first one behind a prefix that others have computed, and of
// tokens that were decoded long ago without drafts.
//
//   pass -1  the tokens of a step with chunks of prompts: writes their keys
//   pass 0   a row's tokens whose keys do not come from the model's own states yet, up to the newest:
//            its draft follows. Keys of drafts that were accepted are written again here
//   pass i   draft i - 1 alone, and the state that the pass before returned
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

// With layers() num_rows is the pass's number of tokens.
struct HeadsStep {
  at::Tensor hidden;     // [num_rows, hidden_dim] of the model's dtype
  at::Tensor token_ids;  // [num_rows] int32 what follows: the newest token, or the draft before
  int pass = 0;          // 0 to num_drafts - 1; with layers() also -1
  LinearContext* linears = nullptr;  // for products (runner/ops/linear.h)
  // With layers(): attention, positions, and which tokens logits are wanted of; else null.
  const Step* step = nullptr;
};

// With layers() num_rows is that of step->logits_indices(). In pass -1 nothing of it is read.
struct HeadsOutput {
  at::Tensor logits;  // [num_rows, vocab_size] float32, float16 or bfloat16
  // [num_rows, hidden_dim] what the next pass sees, as HeadsStep::hidden; undefined: the same again.
  at::Tensor hidden = {};
};

class DraftHeads {
 public:
  virtual ~DraftHeads() = default;

  // Decoder layers of the heads' own, `layer` in Step::Attend; none: heads without keys. They may have
  // windows or chunks, but keep the keys of whole sequences: accepted drafts are seen again, and so
  // are tokens that were decoded without drafts. The same at each call; must stay valid.
  virtual absl::Span<const LayerSpec> layers() const { return {}; }

  // Rows that are padded, or have no drafts, are computed and not used. Errors fail the step.
  virtual absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_HEADS_H_
