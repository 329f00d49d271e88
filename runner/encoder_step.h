// The encoder's pass as a model sees it: the concatenated inputs of some sequences, attention
// within each input, and the cache that receives the keys.
//
// Tensors hold num_tokens tokens, without padding. ModelRunner creates the object; it is valid
// during Model::Encode(). Thread safety: none.

#ifndef REPRISE_RUNNER_ENCODER_STEP_H_
#define REPRISE_RUNNER_ENCODER_STEP_H_

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

class EncoderStep {
 public:
  // Set by the runner.
  struct Parts {
    at::Tensor token_ids;
    at::Tensor positions;
    std::vector<at::Tensor> slot_mappings;  // one per KV group; slots for cross groups
    absl::Span<const LayerSpec> layers;
    absl::Span<const KvLayer> kv;  // one per layer
    const LayerClasses* classes = nullptr;
    RaggedBatch batch;
    absl::Span<const BatchSchedule> work;  // one per class; only for classes without a cache
    LinearContext* linears = nullptr;
  };
  explicit EncoderStep(Parts parts) : parts_(std::move(parts)) {}

  int num_tokens() const { return parts_.batch.num_tokens; }
  const at::Tensor& token_ids() const { return parts_.token_ids; }  // [num_tokens] int32
  // [num_tokens] int32; each input begins at 0.
  const at::Tensor& positions() const { return parts_.positions; }

  // For a kEncoder layer: each token attends to its whole input. q: [num_tokens,
  // num_q_heads, head_dim_qk], k: [num_tokens, num_kv_heads, head_dim_qk], v: [num_tokens,
  // num_kv_heads, head_dim_v]; any strides, but contiguous in the last dimension. Returns out
  // [num_tokens, num_q_heads, head_dim_v]. Errors: InvalidArgument if the layer has another kind;
  // as RaggedAttention().
  absl::StatusOr<at::Tensor> Attend(int layer, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v) const;

  // For a kEncoderDecoder layer: writes the keys and values that the decoder will attend to. k and
  // v as in Attend(). Call it once per pass for each such layer, except layers that share another
  // layer's keys. Errors: InvalidArgument if the layer has another kind; as WriteKv().
  absl::Status WriteKeys(int layer, const at::Tensor& k, const at::Tensor& v) const;

  LinearContext& linears() const { return *parts_.linears; }

 private:
  absl::Status CheckKind(int layer, AttentionKind kind, const char* name) const;

  Parts parts_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_ENCODER_STEP_H_
