// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a model, described once: a function requests each weight from a source by name and
// shape.
//
//   absl::StatusOr<Weights> Read(const Config& config, WeightSource& source) {
//     const LayerReader in(source, "model.layers.0.");
//     REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm("input_layernorm.weight", hidden));
//     REPRISE_ASSIGN_OR_RETURN(Linear qkv, in.Projection({{"q_proj", q_size}, {"k_proj", kv_size},
//                                                         {"v_proj", kv_size}}, hidden,
//                                                        LinearBias::kNone));
//     ...
//   }
//
// The same function then lists the tensors that a checkpoint must hold (ListTensors()), loads them
// (LoadWeights()), checks the shapes of weights from elsewhere (CheckWeights()), and makes random
// ones (examples/models/random_source.h).
//
// Thread safety: none for a source; pure functions.

#ifndef REPRISE_HF_WEIGHTS_H_
#define REPRISE_HF_WEIGHTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/stored_scales.h"
#include "reprise/hf/tensor_names.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

// A tensor of a checkpoint, or some of its rows, that becomes rows of a weight. Several parts may
// name the same tensor, even in one request:
//
//   {.name = "qkv_proj", .num_rows = kv, .first_row = q, .num_stored_rows = q + 2 * kv}   // K
struct WeightPart {
  std::string name;
  int64_t num_rows = 0;
  // As in TensorCopy.
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
  // The tensor's shape in the checkpoint, with the same number of elements. Empty: the number of
  // stored rows, then the shape of a row.
  std::vector<int64_t> stored_shape = {};
  // Whether the last two of stored_shape are {in_features, out_features}, as in TensorCopy.
  bool is_transposed = false;
  // This rank's rows of each `period` rows (0: of all num_rows); nullopt: all of them.
  // unzipped_head counts the rank's rows. Of a transposed tensor `period` divides out_features.
  std::optional<Share> share = {};
  int64_t period = 0;
  // The part is rows [first_row, first_row + num_rows) of a tensor of num_stored_rows rows. 0: the
  // tensor has exactly num_rows rows. The other members count rows of the part. REQUIRES: the part
  // is within the tensor, and a transposed part is the whole tensor.
  int64_t first_row = 0;
  int64_t num_stored_rows = 0;

  // Rows of the tensor.
  int64_t all_stored_rows() const { return num_stored_rows > 0 ? num_stored_rows : num_rows; }

  // The rank's rows.
  int64_t num_rank_rows() const {
    if (!share.has_value()) return num_rows;
    return period > 0 ? num_rows / period * share->size : share->size;
  }
};

// What a weight does: multiplies inputs, scales a norm, or is added to a product.
enum class WeightKind : int8_t { kMatrix, kNorm, kBias };

struct WeightRequest {
  std::vector<WeightPart> parts;   // stacked by rows; not empty
  std::vector<int64_t> row_shape;  // of all parts: {in_features} for a matrix, {} for a vector
  WeightKind kind = WeightKind::kMatrix;
  double neutral = 1;  // of a norm: the value that changes nothing
  // This rank's columns of rows of one dimension; nullopt: all of them.
  std::optional<Share> columns = {};
  // Whether a checkpoint may hold the parts as values of 8 bits with scales.
  bool may_have_scales = false;
  // The weight's dtype: float32, float16 or bfloat16. nullopt: the source's dtype.
  std::optional<DType> dtype = {};

  // Of the weight: the rank's rows of all parts, and its columns.
  std::vector<int64_t> Shape() const;
};

// A weight of 8 bits, as Linear::CreateScaled() takes it.
struct ScaledWeight {
  at::Tensor values;       // [out_features, in_features] float8_e4m3fn
  at::Tensor scales = {};  // [out_features, num_groups] float32
};

// Provides weights: those of one rank, where a model is divided over several. Requests name what is
// stored and what of it is the rank's.
class WeightSource {
 public:
  explicit WeightSource(DType dtype, const Ranks& ranks = {}) : dtype_(dtype), ranks_(ranks) {}
  virtual ~WeightSource() = default;

  // The tensor; its values may be set later. May throw LibTorch's exceptions.
  virtual absl::StatusOr<at::Tensor> Add(const WeightRequest& request) = 0;

  // The same for a request that may have scales; nullopt if its parts do not have 8 bits.
  virtual absl::StatusOr<std::optional<ScaledWeight>> AddScaled(const WeightRequest&) {
    return std::optional<ScaledWeight>();
  }

  // The scales of the KV cache of the layer whose names begin with `layer`
  // (examples/hf/stored_scales.h). They are no weights: a source need not have any.
  virtual absl::StatusOr<StoredKvScales> KvScalesOf(const std::string& layer) const;

  DType dtype() const { return dtype_; }
  const Ranks& ranks() const { return ranks_; }

 private:
  DType dtype_;
  Ranks ranks_;
};

enum class LinearBias { kNone, kAdded };

constexpr LinearBias BiasIf(bool is_added) {
  return is_added ? LinearBias::kAdded : LinearBias::kNone;
}

// Requests weights whose names begin with a prefix from a source. The source must outlive it.
// Errors: those of the source.
class LayerReader {
 public:
  LayerReader(WeightSource& source, std::string prefix);

  const Ranks& ranks() const { return source_.ranks(); }

  // The scales of the KV cache of the layer at the prefix. Errors: those of ReadKvScales().
  absl::StatusOr<StoredKvScales> KvScales() const { return source_.KvScalesOf(prefix_); }

  // `rows`: this rank's; nullopt: all.
  absl::StatusOr<at::Tensor> Matrix(std::string_view name, std::vector<int64_t> shape,
                                    std::optional<Share> rows = std::nullopt) const;
  absl::StatusOr<at::Tensor> Norm(std::string_view name, int64_t size, double neutral = 1) const;
  absl::StatusOr<at::Tensor> Bias(std::string_view name, int64_t size,
                                  std::optional<Share> rows = std::nullopt) const;
  // A vector of float32 whatever the source's dtype, for values that must not be rounded to it: the
  // bias of a router's choice. A checkpoint may hold it as any float of 16, 32 or 64 bits.
  absl::StatusOr<at::Tensor> Float32(std::string_view name, int64_t size,
                                     std::optional<Share> rows = std::nullopt) const;

  // The rows of all `parts` one after the other, [num_rows, row_shape...], named in full.
  // `columns`: this rank's; nullopt: all.
  absl::StatusOr<at::Tensor> Rows(const std::vector<WeightPart>& parts,
                                  std::vector<int64_t> row_shape, WeightKind kind,
                                  std::optional<Share> columns = std::nullopt) const;

  // One product for all `parts`, with concatenated outputs. Parts are named without ".weight" and
  // ".bias"; biases are stored as vectors, and a part's bias is the same rows of its vector.
  // Errors: also those of Linear::Create().
  absl::StatusOr<Linear> Projection(const std::vector<WeightPart>& parts, int64_t in_features,
                                    LinearBias bias) const;

  // A product of this rank's columns, whose outputs are to be added over the ranks: the bias is
  // that of rank 0 alone, so that the sum has it once. Named as in Projection().
  absl::StatusOr<Linear> SummedProjection(std::string_view name, int64_t out_features,
                                          int64_t in_features, const Share& columns,
                                          LinearBias bias) const;

 private:
  absl::StatusOr<at::Tensor> Add(std::vector<WeightPart> parts, std::vector<int64_t> row_shape,
                                 WeightKind kind, std::string_view suffix, double neutral,
                                 std::optional<Share> columns = std::nullopt) const;

  // The weight of a product, of parts named as in Projection(). Of 8 bits where the source has
  // that; else `scales` is undefined.
  absl::StatusOr<ScaledWeight> ProductWeight(std::vector<WeightPart> parts, int64_t in_features,
                                             std::optional<Share> columns = std::nullopt) const;

  WeightSource& source_;
  std::string prefix_;
};

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
  // Whether it may have 8 bits, and scales beside it (examples/hf/stored_scales.h).
  bool may_have_scales = false;
};

using IsUnusedTensor = absl::FunctionRef<bool(const std::string& name)>;

// Returns InvalidArgument unless `tensors` are exactly those expected, of floating types, except
// names for which `is_unused` is true and duplicates, which have the bytes of an expected tensor.
// Weights of products may have 8 bits, with scales. `names`: how `tensors` are named; `expected`
// and `is_unused` have the names of a plain decoder, messages those of `tensors`. One message of at
// most 260 characters names the tensors that are missing, unknown, or of a wrong shape or type: the
// first few of each kind, and the number of further tensors. Errors: also those of
// TensorNaming::Of().
absl::Status CheckTensors(const std::vector<ExpectedTensor>& expected, const TensorViews& tensors,
                          IsUnusedTensor is_unused, TensorNames names = TensorNames::kPlain);

struct LoadWeightsOptions {
  c10::Device device = c10::kCPU;
  // nullopt: that of the first tensor in the checkpoint; float64 becomes float32.
  std::optional<DType> dtype = {};
  // Which of the model's ranks loads. It reads its own part of each tensor and nothing else.
  Ranks ranks = {};
  // Called from time to time while files are read, for a display of progress.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

namespace internal {
using ReadWeights = absl::FunctionRef<absl::Status(WeightSource&)>;
// Both call `read` on tensors without memory, of the meta device; the second then on the
// checkpoint.
absl::StatusOr<std::vector<ExpectedTensor>> ListTensors(ReadWeights read, const Ranks& ranks);
absl::Status LoadWeights(const std::string& folder, const LoadWeightsOptions& options,
                         IsUnusedTensor is_unused, TensorNames names, ReadWeights read);
}  // namespace internal

// The tensors of a checkpoint, each once, in the order in which `read` requests them; read is
// absl::StatusOr<Weights>(WeightSource&). REQUIRES: all requests agree on the shape of a tensor.
template <typename Read>
absl::StatusOr<std::vector<ExpectedTensor>> ListTensors(const Read& read) {
  return internal::ListTensors([&](WeightSource& source) { return read(source).status(); }, {});
}

// The result of `read` on tensors without memory, for their shapes on a rank.
template <typename Read>
std::invoke_result_t<Read, WeightSource&> ShapesOf(const Read& read, const Ranks& ranks = {}) {
  std::invoke_result_t<Read, WeightSource&> weights = absl::UnknownError("not read");
  REPRISE_RETURN_IF_ERROR(internal::ListTensors(
                              [&](WeightSource& source) {
                                weights = read(source);
                                return weights.status();
                              },
                              ranks)
                              .status());
  return weights;
}

// Reads <folder>'s safetensors, with several threads (tensor_copies.h). Each value is converted
// once, directly into its final memory. On the CPU, weights of a single part that already have the
// wanted dtype stay in the mapped file, which then lives as long as the tensors; so no weight is in
// memory twice.
// Weights of products that are fp8 (e4m3) with scales in the checkpoint stay so.
// `names`: how the folder names its tensors. `read` and `is_unused` have the names of a plain
// decoder, messages those of the folder.
// Errors: those of Checkpoint::Open(), and of CheckTensors(), naming the folder; InvalidArgument
// for a dtype that is not float32, float16 or bfloat16; ResourceExhausted if memory does not
// suffice.
template <typename Read>
std::invoke_result_t<Read, WeightSource&> LoadWeights(const std::string& folder,
                                                      const LoadWeightsOptions& options,
                                                      IsUnusedTensor is_unused, const Read& read,
                                                      TensorNames names = TensorNames::kPlain) {
  std::invoke_result_t<Read, WeightSource&> weights = absl::UnknownError("not read");
  REPRISE_RETURN_IF_ERROR(
      internal::LoadWeights(folder, options, is_unused, names, [&](WeightSource& source) {
        weights = read(source);
        return weights.status();
      }));
  return weights;
}

// "model.layers.3.": what the names of a layer's tensors begin with, of Hugging Face's decoders.
std::string DecoderLayerPrefix(int layer);

// What IsUnusedDecoderTensor() depends on.
struct DecoderExtent {
  bool ties_embeddings = false;
  int num_layers = 0;
  // Layers after the model's own that predict further tokens (num_nextn_predict_layers).
  int num_prediction_layers = 0;
};

// Whether a decoder's checkpoint may hold the tensor although the model does not use it: rotary
// frequencies in old files, an output projection that is tied to the embedding, and prediction
// layers, which propose drafts: "mtp.*", "model.mtp.*", "model.mtp_layers.*", and
// num_prediction_layers layers after the model's own.
bool IsUnusedDecoderTensor(std::string_view name, const DecoderExtent& extent);

// A member of a model's weights, for CheckWeights(). Null: it is absent.
struct NamedWeight {
  const char* name;
  const at::Tensor* tensor;
};

inline NamedWeight Named(const char* name, const at::Tensor& tensor) { return {name, &tensor}; }
inline NamedWeight Named(const char* name, const Linear& linear) {
  return {name, &linear.weight()};
}
inline NamedWeight Named(const char* name, const std::optional<at::Tensor>& tensor) {
  return {name, tensor.has_value() ? &*tensor : nullptr};
}
inline NamedWeight Named(const char* name, const std::optional<Linear>& linear) {
  return {name, linear.has_value() ? &linear->weight() : nullptr};
}

// InvalidArgument, naming the first weight that is absent, not wanted or of another shape.
// REQUIRES: both list the members of the same struct, of as many layers.
absl::Status CheckWeights(absl::Span<const NamedWeight> expected,
                          absl::Span<const NamedWeight> weights);

}  // namespace reprise

#endif  // REPRISE_HF_WEIGHTS_H_
