// One forward pass as a model sees it: the tokens, where they stand, and attention over their
// sequences' caches.
//
// Tensors are views of persistent buffers, padded to the step's size. Padded tokens have id 0,
// position 0 and slot -1; what a model computes for them is never used, and they write nothing into
// the cache.
//
// Made by ModelRunner; valid during Model::Forward(). Thread safety: none.

#ifndef RUNNER_STEP_H_
#define RUNNER_STEP_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/layer_spec.h"
#include "attention/paged_batch.h"
#include "attention/work_map.h"
#include "cache/kv_layer.h"
#include "runner/ops/linear_context.h"

namespace reprise {

class Step {
 public:
  // What a runner puts into a step. Layers of one class share a batch and a work map.
  struct Parts {
    at::Tensor token_ids;
    at::Tensor positions;
    at::Tensor slot_mapping;
    at::Tensor logits_indices;
    at::Tensor logits;
    absl::Span<const LayerSpec> layers;
    absl::Span<const KvLayer> kv;         // one a layer
    absl::Span<const int> layer_class;    // one a layer: index into work_maps
    absl::Span<const WorkMap> work_maps;  // one a class
    PagedBatch batch;
    LinearContext* linears = nullptr;
  };
  explicit Step(Parts parts) : parts_(std::move(parts)) {}

  int num_tokens() const { return parts_.batch.num_tokens; }
  const at::Tensor& token_ids() const { return parts_.token_ids; }            // [num_tokens] int32
  const at::Tensor& positions() const { return parts_.positions; }            // [num_tokens] int32
  const at::Tensor& slot_mapping() const { return parts_.slot_mapping; }      // [num_tokens] int64
  const at::Tensor& logits_indices() const { return parts_.logits_indices; }  // [num_logits] int32

  // Where logits may be written: [num_logits, vocab_size] of the runner's logits dtype, persistent.
  const at::Tensor& logits() const { return parts_.logits; }

  // Writes k and v of this step's tokens into the layer's cache, then attends. q [num_tokens,
  // num_q_heads, head_dim_qk], k [num_tokens, num_kv_heads, head_dim_qk], v [.., head_dim_v]; any
  // strides with the last one 1. Returns out [num_tokens, num_q_heads, head_dim_v] of q's dtype.
  // Errors: those of WriteKv and PagedAttention.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v) const;

  // Attends to what the cache holds already: after a fused rotary + write (runner/ops/rotary.h), or
  // to another layer's keys.
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q) const;

  // The layer's cache, for ops that write it themselves.
  const KvLayer& kv(int layer) const { return parts_.kv[layer]; }

  // What matrix products need on a GPU (runner/ops/linear.h); on the CPU an empty one.
  LinearContext& linears() const { return *parts_.linears; }

 private:
  absl::Status CheckLayer(int layer) const;

  Parts parts_;
};

}  // namespace reprise

#endif  // RUNNER_STEP_H_
