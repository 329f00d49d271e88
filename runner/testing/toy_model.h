// A model with two attention layers and random weights, small enough to run thousands of steps, in
// which every token of a sequence affects the logits. For tests of runners on any device.

#ifndef REPRISE_RUNNER_TESTING_TOY_MODEL_H_
#define REPRISE_RUNNER_TESTING_TOY_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/attention/device_profile.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/model.h"

namespace reprise {

// H200Profile() with other costs of reading a shared prefix. Tests thereby choose when a prefix is
// read once.
constexpr DeviceProfile ProfileWithCascade(const CascadeCosts& costs) {
  DeviceProfile profile = H200Profile();
  profile.cascade_costs = costs;
  return profile;
}

struct ToyModelOptions {
  int vocab_size = 61;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int max_position = 256;
  DType dtype = DType::kFloat32;           // dtype of q, k and v; everything else is float32
  std::optional<DType> logits_dtype = {};  // as in ModelSpec
  // Keys and values are multiplied by this factor, which the rest of the layer compensates: it does
  // not change the logits, up to rounding.
  float kv_factor = 1;
  // Computes a GEMM per row, so that a row's results are bitwise independent of the other rows.
  // Slow.
  bool row_by_row = false;
  std::optional<float> kv_scale = {};  // k_scale and v_scale of every LayerSpec
  bool takes_embeddings = false;       // float32 models only
  int num_position_dims = 1;  // if above 1, each dimension has a table; the embeddings are added
  c10::Device device = c10::kCPU;
  uint64_t seed = 1;
};

class ToyModel : public Model {
 public:
  explicit ToyModel(const ToyModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  // Returns the logits [vocab_size] after `tokens`, without a cache, in float32. A runner must
  // reproduce them, up to rounding.
  at::Tensor DenseLogits(absl::Span<const int32_t> tokens) const;
  // Returns the logits [num_tokens, vocab_size] after each token.
  at::Tensor AllDenseLogits(absl::Span<const int32_t> tokens) const;
  // DenseLogits() after n tokens with these embeddings [n, width], at these positions
  // [num_position_dims, n] int32.
  at::Tensor DenseLogitsOf(const at::Tensor& embeddings, const at::Tensor& positions) const;

  // Returns the token embeddings [n, width] on the model's device.
  at::Tensor Embeddings(absl::Span<const int32_t> tokens) const;

  int num_forwards() const { return num_forwards_; }

 private:
  struct Layer {
    at::Tensor q, k, v, out;  // [width, heads * head_dim] and back
  };

  at::Tensor Product(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor AllDenseLogitsOf(const at::Tensor& embeddings, const at::Tensor& positions) const;
  // Returns [n, width] for positions [n] or [num_position_dims, n].
  at::Tensor PositionEmbeddings(const at::Tensor& positions) const;

  ToyModelOptions options_;
  ModelSpec spec_;
  at::Tensor token_embedding_;                   // [vocab_size, width]
  std::vector<at::Tensor> position_embeddings_;  // by dimension, [max_position, width]
  std::vector<Layer> layers_;
  at::Tensor head_;  // [width, vocab_size]
  int num_forwards_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_TOY_MODEL_H_
