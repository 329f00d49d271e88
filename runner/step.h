// One forward pass as a model sees it: the tokens, their positions, and attention over their
// sequences' caches.
//
// Tensors are views of persistent buffers, padded to the step's size. Padded tokens have id 0,
// position 0 and slot -1; what a model computes for them is never used, and they write nothing into
// the cache.
//
// The model's spec defines the kind of each layer (attention/layer_spec.h), and the kind determines
// the call:
//
//   layer                                             call
//   with keys of its own                              Attend(layer, q, k, v)
//   with a latent, V within K (absorbed MLA)          Attend(layer, q, latent)
//   that shares another's keys, or cross attention    Attend(layer, q)
//   whose q and k are rotated first                   Write(layer, k, v, {.q = q, .table = table});
//                                                     then Attend(layer, q)
//
// Windows, chunks and the encoder's lengths do not change the call. They are in the layer's
// metadata, which the runner makes once per step and layers of a class share
// (attention/layer_classes.h).
//
// Made by ModelRunner; valid during Model::Forward(). Thread safety: none.

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
#include "reprise/attention/work_map/work_map.h"
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

// Optional arguments of Step::Attend.
struct AttendOptions {
  // Where the result goes, [num_tokens, num_q_heads, head_dim_v] of any dtype that
  // attention/attention.h allows; it must outlive the graph. Undefined: memory of the step, of q's
  // dtype, or of the model's if q is fp8.
  at::Tensor out = {};
  // Written if defined: [num_tokens, num_q_heads] float32, natural logarithm.
  at::Tensor lse = {};
  // Which k and v of this step's tokens the queries see: the cache's, rounded to its dtype, or the
  // arguments themselves.
  enum class NewKeys : int8_t { kCached, kExact } new_keys = NewKeys::kCached;
  // Scales of a quantised out, and the choice of kernel. new_k and new_v are set by new_keys.
  AttentionExtras extras = {};
};

// Attention over some of the keys.
struct AttentionPart {
  at::Tensor out;  // [num_tokens, num_q_heads, head_dim_v]
  at::Tensor lse;  // [num_tokens, num_q_heads] float32, natural logarithm
};

// A rotary position embedding that Step::Write() applies to q and k before it writes k.
struct RotaryWrite {
  at::Tensor q;      // [num_tokens, num_q_heads, head_dim_qk]: rotated in place
  at::Tensor table;  // cosines and sines (runner/ops/rotary_table.h)
  // Normalises the heads of q and k before the rotation (runner/ops/head_norm.h).
  std::optional<HeadNormOptions> norm = {};
};

class Step {
 public:
  // The runner fills these in.
  struct Parts {
    at::Tensor token_ids;
    at::Tensor positions;
    // [num_tokens, dim], and [num_tokens, 1] bool: which of their rows are given. Undefined in
    // steps of tokens alone.
    at::Tensor embeddings = {};
    at::Tensor is_embedded = {};
    std::vector<at::Tensor> slot_mappings;  // one per KV group
    at::Tensor logits_indices;
    at::Tensor logits;
    absl::Span<const KvLayer> kv;  // one per layer
    int first_layer = 0;           // of `metadata`'s: the model's first one
    StepBatches batches;
    const StepMetadata* metadata = nullptr;
    LinearContext* linears = nullptr;
    DType dtype = DType::kFloat32;  // of the model
    // Scales to set from this step's keys before they are written; null: they are as they are.
    const KvScales* calibrated = nullptr;
    // receives the hidden states of the step; null: nothing reads them
    std::function<absl::Status(const Step& step, const at::Tensor& hidden)> take_hidden = nullptr;
    // Where logits stay divided over ranks (runner/ranks/divided_logits.h); undefined: whole logits
    // are wanted.
    at::Tensor divided_logits = {};
    StepWatch* watch = nullptr;      // sees the tensors of Watch(); null: none does
    GraphBackend* graphs = nullptr;  // what captures the step; null: it is not captured
    bool attends_between_graphs = false;
  };
  explicit Step(Parts parts) : parts_(std::move(parts)) {}

  int num_tokens() const { return static_cast<int>(parts_.token_ids.size(0)); }
  const at::Tensor& token_ids() const { return parts_.token_ids; }  // [num_tokens] int32
  // [num_tokens] int32; of models with positions of several dimensions (ModelSpec)
  // [num_position_dims, num_tokens], each row contiguous.
  const at::Tensor& positions() const { return parts_.positions; }
  const at::Tensor& logits_indices() const { return parts_.logits_indices; }  // [num_logits] int32

  // Whether callers may have brought embeddings for some of the tokens: a constant of the step's
  // graph.
  StepInput input() const {
    return parts_.embeddings.defined() ? StepInput::kEmbeddings : StepInput::kTokens;
  }

  // The embeddings of the step's tokens: those that callers brought, and `from_ids` for all other
  // tokens. `from_ids` [num_tokens, input_embedding_dim] of the model's dtype: what the model makes
  // of token_ids(), scaled, before anything depends on it. In steps of tokens alone `from_ids`
  // itself, at no cost. Errors: InvalidArgument for another shape or dtype.
  absl::StatusOr<at::Tensor> Embed(const at::Tensor& from_ids) const;

  // Where logits may be written: [num_logits, vocab_size] of the runner's logits dtype, persistent.
  const at::Tensor& logits() const { return parts_.logits; }

  // If defined, a model with ModelSpec::divided_logits writes its share of the logits here and does
  // not gather logits(). If undefined, the model returns whole logits.
  const at::Tensor& divided_logits() const { return parts_.divided_logits; }

  // The step's hidden states, for draft heads: hidden [num_tokens, hidden_dim] of the model's dtype,
  // of all tokens, what logits are computed from. Models with ModelSpec::hidden_dim call it once in
  // each forward pass; costs nothing if no heads read them. Errors: InvalidArgument for another shape
  // or dtype.
  absl::Status KeepHidden(const at::Tensor& hidden) const {
    return parts_.take_hidden == nullptr ? absl::OkStatus() : parts_.take_hidden(*this, hidden);
  }

  // This step with another receiver of hidden states; null: none. For a model that passes its steps on
  // to another one.
  using TakeHidden = std::function<absl::Status(const Step& step, const at::Tensor& hidden)>;
  Step WithHidden(TakeHidden take_hidden) const {
    Step other = *this;
    other.parts_.take_hidden = std::move(take_hidden);
    return other;
  }
  bool keeps_hidden() const { return parts_.take_hidden != nullptr; }

  // Copies what the model returned to logits(), unless it is there. The runner's. Errors:
  // InvalidArgument for another shape.
  absl::Status KeepLogits(const at::Tensor& returned) const;

  // Writes k and v of this step's tokens into the layer's cache, then attends. q [num_tokens,
  // num_q_heads, head_dim_qk] of the model's dtype, or as the layer's spec says (LayerSpec::q_dtype);
  // k [num_tokens, num_kv_heads, head_dim_qk], v [.., head_dim_v]; any strides with the last one 1.
  // Returns out [num_tokens, num_q_heads, head_dim_v] of q's dtype (AttendOptions may say
  // otherwise). Errors: InvalidArgument for a layer that the table above gives another call, and for
  // q of another dtype; those of WriteKv and PagedAttention.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const AttendOptions& options = {}) const;

  // Layers with v_in_k: writes latent [num_tokens, 1, head_dim_qk], whose first head_dim_v columns
  // are V, then attends. Errors: as above.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& latent,
                                    const AttendOptions& options = {}) const;

  // Attends to what the cache holds already.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q,
                                    const AttendOptions& options = {}) const;

  // The largest number of tokens of a row, a constant of the step's shape: 1 in decode steps.
  int max_query_len() const { return parts_.batches.rows.max_query_len; }

  // Attention in two parts, for steps with max_query_len() > 1 of models whose spec names attention
  // `within`: over the step's own tokens, from k and v as they are, and over the keys that the
  // layer's cache held before the step. Merged (attention/merge/merge_states.h) they are attention
  // over all of them. For MLA: prompts not absorbed, the prefix absorbed.
  //
  // AttendWithin(): each token sees those of its row up to itself, by spec().within[attention]; k,
  // v as in Attend(). AttendBefore(): q as in Attend(layer, q); layers of full attention or of a
  // window. A token that sees no key gets out 0, lse -inf. Errors: InvalidArgument for an index out
  // of range; FailedPrecondition in other steps; those of RaggedAttention and PagedAttention.
  absl::StatusOr<AttentionPart> AttendWithin(int attention, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v) const;
  absl::StatusOr<AttentionPart> AttendBefore(int layer, const at::Tensor& q) const;

  // Writes k and v, or a latent alone, of this step's tokens into the layer's cache: what Attend()
  // does first. Errors: as there.
  absl::Status Write(int layer, const at::Tensor& k, const at::Tensor& v) const;
  absl::Status Write(int layer, const at::Tensor& latent) const;

  // Rotates q and k by positions(), then writes k and v as above. One launch (RotaryWriteKv()); a
  // step that calibrates the cache's scales, or whose tensors are watched, takes two. The contents
  // of k are unspecified afterwards. Errors: as above, and errors of RotaryWriteKv().
  absl::Status Write(int layer, const at::Tensor& k, const at::Tensor& v,
                     const RotaryWrite& rotary) const;

  // The layer's metadata of this step, for ops of the model's own (attention/attention.h).
  // REQUIRES: a layer of the spec that has a cache.
  const PagedBatch& batch(int layer) const;
  const BatchWork& work(int layer) const;

  // Runs `work` between two captured graphs, where the step is captured: each replay runs it again,
  // on the host (GraphBackend::RunBetweenGraphs). For what cannot be captured, such as work that
  // depends on values of the host. It must be idempotent. The tensors that it holds take memory of
  // their own in every captured graph. All of attention runs so if
  // DebugOptions::attention is kBetweenGraphs. Errors: the error of the work; InvalidArgument for
  // an empty function; any error of the capture. The model must return the error.
  absl::Status RunBetweenGraphs(std::function<absl::Status()> work) const;

  // Names a tensor of the forward pass for the debug mode that compares replayed steps with eager
  // ones (ReplayCheck), which otherwise knows those of attention, "layer 3 q", and "logits":
  //
  //   step.Watch("mlp of layer 3", x);
  //
  // `rows` says what the first dimension counts. Rows of padding are not compared, since their
  // contents are undefined. Costs the test of a pointer if that mode is off.
  void Watch(std::string_view name, const at::Tensor& tensor,
             WatchedRows rows = WatchedRows::kTokens) const {
    if (parts_.watch != nullptr) See(name, tensor, rows);
  }
  // The same for a tensor with a row per token, named "<place> <index> <what>": "layer 3 experts".
  // Makes the name only if a watch reads it.
  void Watch(const char* place, int index, const char* what, const at::Tensor& tensor) const;

  // This step with another watch: for a model that passes its steps on to another one, to see that
  // one's tensors. `watch` must outlive the result.
  Step WatchedBy(StepWatch* watch) const {
    Step watched = *this;
    watched.parts_.watch = watch;
    return watched;
  }

  // What matrix products need on a GPU (runner/ops/linear.h); on the CPU an empty one.
  LinearContext& linears() const { return *parts_.linears; }

 private:
  // Runs it within the graph, or between two.
  template <typename Attention>
  absl::Status Run(Attention attention) const;
  absl::Status CheckHasCache(int layer) const;
  absl::Status CheckIsWritten(int layer) const;
  absl::Status CheckKeepsPair(int layer) const;
  absl::Status CheckHasWithin() const;
  absl::Status CheckQuery(int layer, const at::Tensor& q) const;
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) const;
  // Sets the layer's scales from k and v, in the step that calibrates.
  absl::Status Calibrate(int layer, const at::Tensor& k, const at::Tensor& v) const;
  // Slots of this step's tokens in the layer's cache, [num_tokens] int64. REQUIRES: it has a cache.
  const at::Tensor& slot_mapping(int layer) const;
  int place(int layer) const { return parts_.first_layer + layer; }  // among metadata's layers
  const LayerSpec& spec(int layer) const { return parts_.metadata->layers()[place(layer)]; }
  const LayerClasses& classes() const { return parts_.metadata->classes(); }

  Parts parts_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_H_
