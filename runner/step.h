// One forward pass as a model sees it: the tokens, their positions, and attention over the caches
// of their sequences.
//
// Tensors are views of persistent buffers, padded to the step's size. Padded tokens have id 0,
// position 0 and slot -1. The model's results for padded tokens are never used, and padded tokens
// write nothing into the cache.
//
// The kind of each layer in the model's spec (attention/layer_spec.h) determines the call:
//
//   layer                                             call
//   with its own keys                                 Attend(layer, q, k, v)
//   MLA (absorbed): V is a part of K                  Attend(layer, q, latent)
//   that shares another layer's keys, or cross        Attend(layer, q)
//   attention
//   whose q and k are rotated first                   Write(layer, k, v, {.q = q, .table = table});
//                                                     then Attend(layer, q)
//
// Windows, chunks and the encoder's lengths do not change the call. They are in the layer's
// metadata, which the runner computes once per step and which the layers of a class share
// (attention/layer_classes.h).
//
// ModelRunner creates the object; it is valid during Model::Forward(). Thread safety: none.

#ifndef REPRISE_RUNNER_STEP_H_
#define REPRISE_RUNNER_STEP_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/graphs/graph_backend.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/kv_scales.h"
#include "reprise/runner/ops/head_norm.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/step_metadata.h"
#include "reprise/runner/step_watch.h"

namespace reprise {

// Optional arguments of Step::Attend().
struct AttendOptions {
  // Destination of the result, [num_tokens, num_q_heads, head_dim_v], with any dtype that
  // attention/attention.h supports; must outlive the graph. Undefined: memory of the step, with q's
  // dtype, or the model's dtype if q is fp8.
  at::Tensor out = {};
  // If defined: receives the log-sum-exp [num_tokens, num_q_heads] float32, natural logarithm.
  at::Tensor lse = {};
  // Which k and v the queries read for this step's tokens: the cached values, rounded to the
  // cache's dtype, or the exact arguments.
  enum class NewKeys : int8_t { kCached, kExact } new_keys = NewKeys::kCached;
  // Scales of a quantised `out`, and the choice of kernel. Calls with k and v set new_k and new_v
  // if new_keys is kExact.
  AttentionExtras extras = {};
};

// The result of attention over some of the keys.
struct AttentionPart {
  at::Tensor out;  // [num_tokens, num_q_heads, head_dim_v]
  at::Tensor lse;  // [num_tokens, num_q_heads] float32, natural logarithm
};

// A rotary position embedding that Step::Write() applies to q and k before it writes k.
struct RotaryWrite {
  at::Tensor q;      // [num_tokens, num_q_heads, head_dim_qk], rotated in place
  at::Tensor table;  // cosines and sines (runner/ops/rotary_table.h)
  // Normalises the heads of q and k before the rotation (runner/ops/head_norm.h).
  std::optional<HeadNormOptions> norm = {};
};

class Step {
 public:
  // Set by the runner.
  struct Parts {
    at::Tensor token_ids;
    at::Tensor positions;
    // [num_tokens, dim], and [num_tokens, 1] bool that marks the rows that are given. Undefined in
    // steps with token ids only.
    at::Tensor embeddings = {};
    at::Tensor is_embedded = {};
    std::vector<at::Tensor> slot_mappings;  // one per KV group
    at::Tensor logits_indices;
    at::Tensor logits;
    absl::Span<const KvLayer> kv;  // one per layer
    int first_layer = 0;           // index of the model's first layer in `metadata`
    StepBatches batches;
    const StepMetadata* metadata = nullptr;
    LinearContext* linears = nullptr;
    DType dtype = DType::kFloat32;  // the model's dtype
    // Scales to compute from this step's keys before the keys are written; null: no calibration.
    const KvScales* calibrated = nullptr;
    // Receives the hidden states of the step; null: not needed.
    std::function<absl::Status(const Step& step, const at::Tensor& hidden)> take_hidden = nullptr;
    // Destination of logits that stay sharded over ranks (runner/ranks/sharded_logits.h);
    // undefined: the step needs whole logits.
    at::Tensor sharded_logits = {};
    StepWatch* watch = nullptr;      // receives the tensors of Watch(); null: none
    GraphBackend* graphs = nullptr;  // the backend that captures the step; null: not captured
    bool attends_between_graphs = false;
  };
  explicit Step(Parts parts) : parts_(std::move(parts)) {}

  int num_tokens() const { return static_cast<int>(parts_.token_ids.size(0)); }
  const at::Tensor& token_ids() const { return parts_.token_ids; }  // [num_tokens] int32
  // [num_tokens] int32. For models with several position dimensions (ModelSpec):
  // [num_position_dims, num_tokens], each row contiguous.
  const at::Tensor& positions() const { return parts_.positions; }
  const at::Tensor& logits_indices() const { return parts_.logits_indices; }  // [num_logits] int32

  // Whether callers may pass embeddings for some of the tokens. Constant per graph.
  StepInput input() const {
    return parts_.embeddings.defined() ? StepInput::kEmbeddings : StepInput::kTokens;
  }

  // Returns the embeddings of the step's tokens: the callers' embeddings where given, and
  // `from_ids` for all other tokens. `from_ids`: [num_tokens, input_embedding_dim] of the model's
  // dtype, the model's scaled embeddings of token_ids(). Call it before any other use of
  // `from_ids`. In steps with token ids only, returns `from_ids` without cost. Errors:
  // InvalidArgument if the shape or dtype is wrong.
  absl::StatusOr<at::Tensor> Embed(const at::Tensor& from_ids) const;

  // Optional destination of the logits: [num_logits, vocab_size] of the runner's logits dtype,
  // persistent.
  const at::Tensor& logits() const { return parts_.logits; }

  // If defined, a model with ModelSpec::sharded_logits must write its shard of the logits here, and
  // return logits() without writing it. If undefined, the model returns whole logits.
  const at::Tensor& sharded_logits() const { return parts_.sharded_logits; }

  // Passes the step's hidden states to draft heads. hidden: [num_tokens, hidden_dim] of the model's
  // dtype, for all tokens: the states that logits are computed from. Models with
  // ModelSpec::hidden_dim must call it once in each forward pass. Costs nothing if no heads read
  // them. Errors: InvalidArgument if the shape or dtype is wrong.
  absl::Status KeepHidden(const at::Tensor& hidden) const {
    return parts_.take_hidden == nullptr ? absl::OkStatus() : parts_.take_hidden(*this, hidden);
  }

  // Returns this step with another receiver of hidden states; null: none. For a model that forwards
  // its steps to another model.
  using TakeHidden = std::function<absl::Status(const Step& step, const at::Tensor& hidden)>;
  Step WithHidden(TakeHidden take_hidden) const {
    Step other = *this;
    other.parts_.take_hidden = std::move(take_hidden);
    return other;
  }
  bool keeps_hidden() const { return parts_.take_hidden != nullptr; }

  // Copies the model's return value to logits(), unless it is already there. Called by the runner.
  // Errors: InvalidArgument if the shape is wrong.
  absl::Status KeepLogits(const at::Tensor& returned) const;

  // Writes k and v of this step's tokens into the layer's cache, then attends. q: [num_tokens,
  // num_q_heads, head_dim_qk] of the model's dtype, or of LayerSpec::q_dtype if set. k:
  // [num_tokens, num_kv_heads, head_dim_qk], v: [num_tokens, num_kv_heads, head_dim_v]; any
  // strides, but contiguous in the last dimension. Returns out [num_tokens, num_q_heads,
  // head_dim_v] of q's dtype, unless AttendOptions specify another or q is fp8. Errors:
  // InvalidArgument if the table above requires another call for the layer, if q has the wrong
  // dtype, or if ranks shard the keys and options.lse is undefined; as WriteKv() and
  // PagedAttention().
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const AttendOptions& options = {}) const;

  // For layers with v_in_k: writes latent [num_tokens, 1, head_dim_qk], whose first head_dim_v
  // columns are V, then attends. Errors: as above.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& latent,
                                    const AttendOptions& options = {}) const;

  // Attends to the keys that are already cached.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q,
                                    const AttendOptions& options = {}) const;

  // Maximum number of tokens per row. Constant per shape of steps: 1 in decode steps.
  int max_query_len() const { return parts_.batches.rows.max_query_len; }

  // Attention in two parts, for steps with max_query_len() > 1 of models whose spec has attention
  // `within`: over the step's own tokens, with unrounded k and v, and over the keys that the
  // layer's cache held before the step. Merging the parts (attention/merge/merge_states.h) gives
  // attention over all keys. Used for MLA: prompts without absorption, the prefix with absorption.
  //
  // AttendWithin(): each token attends to the tokens of its row up to itself, by
  // spec().within[attention]; k and v as in Attend(). AttendBefore(): q as in Attend(layer, q);
  // only for layers with full attention or a window. A token without keys gets out 0 and lse -inf.
  // Errors: InvalidArgument if an index is out of range; FailedPrecondition in other steps; as
  // RaggedAttention() and PagedAttention().
  absl::StatusOr<AttentionPart> AttendWithin(int attention, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v) const;
  absl::StatusOr<AttentionPart> AttendBefore(int layer, const at::Tensor& q) const;

  // Writes k and v, or a latent, of this step's tokens into the layer's cache, as Attend() does
  // first. Errors: as Attend().
  absl::Status Write(int layer, const at::Tensor& k, const at::Tensor& v) const;
  absl::Status Write(int layer, const at::Tensor& latent) const;

  // Rotates q and k by positions(), then writes k and v as above. One launch (RotaryWriteKv());
  // several if the step calibrates the cache's scales or its tensors are watched. The contents of k
  // are unspecified afterwards. Errors: as above, and as RotaryWriteKv().
  absl::Status Write(int layer, const at::Tensor& k, const at::Tensor& v,
                     const RotaryWrite& rotary) const;

  // The layer's metadata of this step, for the model's own ops (attention/attention.h). REQUIRES: a
  // layer of the spec that has a cache.
  const PagedBatch& batch(int layer) const;
  const BatchSchedule& work(int layer) const;

  // Runs `work` between two captured graphs if the step is captured: each replay runs it again, on
  // the host (GraphBackend::RunBetweenGraphs()). For work that cannot be captured, for example
  // because it depends on host values. `work` must be idempotent. The tensors that `work` holds
  // take separate memory in every captured graph. With AttentionLaunch::kBetweenGraphs, all
  // attention runs this way. Errors: as `work`; InvalidArgument if `work` is empty; errors of the
  // capture. The model must return the error.
  absl::Status RunBetweenGraphs(std::function<absl::Status()> work) const;

  // Registers a tensor of the forward pass with the debug mode that compares replayed with eager
  // steps (ReplayCheck). Without such calls, the mode only compares the tensors of attention
  // ("layer 3 q") and "logits".
  //
  //   step.Watch("mlp of layer 3", x);
  //
  // `rows` states what the first dimension counts. Rows of padding are not compared, because their
  // contents are undefined. If the mode is off, costs one pointer comparison.
  void Watch(std::string_view name, const at::Tensor& tensor,
             WatchedRows rows = WatchedRows::kTokens) const {
    if (parts_.watch != nullptr) See(name, tensor, rows);
  }
  // Watches a tensor with one row per token, named "<place> <index> <what>": "layer 3 experts".
  // Builds the name only if a watch reads it.
  void Watch(const char* place, int index, const char* what, const at::Tensor& tensor) const;

  // Returns this step with another watch. For a model that forwards its steps to another model and
  // reads that model's tensors. `watch` must outlive the result.
  Step WatchedBy(StepWatch* watch) const {
    Step watched = *this;
    watched.parts_.watch = watch;
    return watched;
  }

  // The context of GEMMs on a GPU (runner/ops/linear.h); empty on the CPU.
  LinearContext& linears() const { return *parts_.linears; }

 private:
  // Runs `attention` directly, which captures it in a captured step, or by RunBetweenGraphs().
  template <typename Attention>
  absl::Status Run(Attention attention) const;
  absl::Status CheckHasCache(int layer) const;
  absl::Status CheckIsWritten(int layer) const;
  absl::Status CheckKeepsPair(int layer) const;
  absl::Status CheckHasWithin() const;
  absl::Status CheckQuery(int layer, const at::Tensor& q) const;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) const;
  // Computes the layer's scales from k and v in the step that calibrates.
  absl::Status Calibrate(int layer, const at::Tensor& k, const at::Tensor& v) const;
  // Returns the slots of this step's tokens in the layer's cache, [num_tokens] int64. REQUIRES: the
  // layer has a cache.
  const at::Tensor& slot_mapping(int layer) const;
  int place(int layer) const { return parts_.first_layer + layer; }  // index in metadata's layers
  const LayerSpec& spec(int layer) const { return parts_.metadata->layers()[place(layer)]; }
  const LayerClasses& classes() const { return parts_.metadata->classes(); }

  Parts parts_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_H_
