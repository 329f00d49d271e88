// Unstable: any version may change this header (docs/embedding.md).
//
// What every family of models does with its weights, from one description of them: lists the
// tensors of a checkpoint, checks one, loads it, makes random weights, and checks weights from
// elsewhere.
//
//   constexpr ModelWeights<NovaConfig, NovaWeights> kWeights = {
//       .read = ReadAll, .named = NamedWeights, .is_unused = IsUnused};
//
//   absl::StatusOr<NovaWeights> LoadNovaWeights(folder, config, options) {
//     return kWeights.Load(folder, config, options);
//   }
//
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_MODEL_WEIGHTS_H_
#define REPRISE_MODELS_MODEL_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/weights.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

// Weights has `layers`, `embedding` and `dtype`.
template <typename Config, typename Weights>
struct ModelWeights {
  // Requests all weights from a source.
  absl::StatusOr<Weights> (*read)(const Config& config, WeightSource& source);
  // All members, in an order that depends on the number of layers alone.
  std::vector<NamedWeight> (*named)(const Weights& weights);
  // Whether a checkpoint may hold the tensor although it is not used.
  bool (*is_unused)(const Config& config, const std::string& name);

  // All tensors of a checkpoint, layer by layer.
  std::vector<ExpectedTensor> Tensors(const Config& config) const {
    absl::StatusOr<std::vector<ExpectedTensor>> tensors = ListTensors(ReaderOf(config));
    CHECK(tensors.ok()) << tensors.status();
    return *std::move(tensors);
  }

  // Errors: those of CheckTensors().
  absl::Status CheckCheckpoint(const Config& config, const TensorViews& tensors) const {
    return CheckTensors(
        Tensors(config), tensors, [&](const std::string& name) { return is_unused(config, name); },
        NamesOf(config));
  }

  // Errors: those of LoadWeights().
  absl::StatusOr<Weights> Load(const std::string& folder, const Config& config,
                               const LoadWeightsOptions& options) const {
    return LoadWeights(
        folder, options, [&](const std::string& name) { return is_unused(config, name); },
        ReaderOf(config), NamesOf(config));
  }

  // Errors: ResourceExhausted if the device's memory does not suffice.
  absl::StatusOr<Weights> Random(const Config& config, const RandomWeightsOptions& options,
                                 RandomSpread spread) const {
    return MakeRandom(options, ReaderOf(config), spread);
  }

  // InvalidArgument, naming the weight, unless all weights of the config are present, with its
  // shapes on the rank, and of weights.dtype.
  absl::Status Check(const Config& config, const Weights& weights, const Ranks& ranks = {}) const {
    REPRISE_ASSIGN_OR_RETURN(const Weights shapes, ShapesOf(ReaderOf(config), ranks));
    if (weights.layers.size() != shapes.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("layers must be num_layers: expected ",
                                                     shapes.layers.size(), ", got ",
                                                     weights.layers.size()));
    }
    REPRISE_RETURN_IF_ERROR(CheckWeights(named(shapes), named(weights)));
    return CheckDType("embedding", weights.embedding, {ToScalarType(weights.dtype)});
  }

 private:
  static TensorNames NamesOf(const Config& config) {
    if constexpr (requires { config.tensor_names; }) return config.tensor_names;
    return TensorNames::kPlain;
  }
  auto ReaderOf(const Config& config) const {
    return [read = read, &config](WeightSource& source) { return read(config, source); };
  }
};

// What the decoders of Llama's names have around their layers.
struct DecoderShape {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  bool ties_embeddings = false;
  double neutral_norm = 1;  // the value of a norm's weight that changes nothing
};

// Reads `embedding`, `layers` by read_layer(layer), `final_norm` and `lm_head`, which is the
// embedding's memory if the two are tied. Over several ranks embedding and head have the rows of
// the rank's share of the vocabulary (runner/ranks/over_ranks.h). Weights are these members and
// `dtype`, in this order.
template <typename Weights, typename ReadLayer>
absl::StatusOr<Weights> ReadDecoder(const DecoderShape& shape, WeightSource& source,
                                    const ReadLayer& read_layer) {
  const LayerReader in(source, "");
  const int64_t hidden = shape.hidden_size;
  const Share vocabulary = AlignedShareOf(shape.vocab_size, source.ranks());
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, in.Matrix("model.embed_tokens.weight",
                                                           {shape.vocab_size, hidden}, vocabulary));
  decltype(Weights::layers) layers;
  layers.reserve(shape.num_layers);
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(auto read, read_layer(layer));
    layers.push_back(std::move(read));
  }
  REPRISE_ASSIGN_OR_RETURN(at::Tensor final_norm,
                           in.Norm("model.norm.weight", hidden, shape.neutral_norm));
  at::Tensor head = embedding;
  if (!shape.ties_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(head,
                             in.Matrix("lm_head.weight", {shape.vocab_size, hidden}, vocabulary));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  return Weights{.embedding = std::move(embedding),
                 .layers = std::move(layers),
                 .final_norm = std::move(final_norm),
                 .lm_head = std::move(lm_head),
                 .dtype = source.dtype()};
}

}  // namespace reprise

#endif  // REPRISE_MODELS_MODEL_WEIGHTS_H_
