#include "examples/seq2seq/bart_weights.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/checkpoint_reader.h"
#include "examples/llama/linear_reader.h"

namespace reprise {
namespace {

constexpr char kEmbedding[] = "model.shared.weight";
constexpr char kLogitsBias[] = "final_logits_bias";

// The first rows of the positions stand for nothing: fairseq counted from the padding token's id.
constexpr int kPositionOffset = 2;

std::string LayerName(const char* stack, int layer) {
  return absl::StrCat("model.", stack, ".layers.", layer, ".");
}

// Asks a reader for the parts of a model.
class PartReader {
 public:
  PartReader(CheckpointReader& reader, const BartConfig& config)
      : reader_(reader), config_(config) {}

  absl::StatusOr<at::Tensor> Tensor(const std::string& name) { return reader_.Add({{name}}); }

  absl::StatusOr<BartInput> Input(const char* stack) {
    const std::string prefix = absl::StrCat("model.", stack, ".");
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor positions, Tensor(prefix + "embed_positions.weight"));
    REPRISE_ASSIGN_OR_RETURN(BartNorm norm, Norm(prefix + "layernorm_embedding"));
    return BartInput{.positions = positions.narrow(0, kPositionOffset, config_.max_seq_len),
                     .norm = std::move(norm)};
  }

  absl::StatusOr<BartEncoderLayer> EncoderLayer(int layer) {
    const std::string prefix = LayerName("encoder", layer);
    REPRISE_ASSIGN_OR_RETURN(BartSelfAttention self, Self(prefix));
    REPRISE_ASSIGN_OR_RETURN(BartFeedForward feed_forward, FeedForward(prefix));
    return BartEncoderLayer{.self = std::move(self), .feed_forward = std::move(feed_forward)};
  }

  absl::StatusOr<BartDecoderLayer> DecoderLayer(int layer) {
    const std::string prefix = LayerName("decoder", layer);
    REPRISE_ASSIGN_OR_RETURN(BartSelfAttention self, Self(prefix));
    REPRISE_ASSIGN_OR_RETURN(BartCrossAttention cross, Cross(prefix));
    REPRISE_ASSIGN_OR_RETURN(BartFeedForward feed_forward, FeedForward(prefix));
    return BartDecoderLayer{.self = std::move(self),
                            .cross = std::move(cross),
                            .feed_forward = std::move(feed_forward)};
  }

 private:
  absl::StatusOr<BartNorm> Norm(const std::string& name) {
    REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, Tensor(name + ".weight"));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor bias, Tensor(name + ".bias"));
    return BartNorm{.weight = std::move(weight), .bias = std::move(bias)};
  }

  // One product for `parts`, their outputs side by side.
  absl::StatusOr<Linear> Product(const std::string& prefix, const std::vector<TensorPart>& parts) {
    return AddLinear(reader_, prefix, parts, LinearBias::kAdded);
  }

  absl::StatusOr<BartSelfAttention> Self(const std::string& layer) {
    const std::string prefix = layer + "self_attn.";
    REPRISE_ASSIGN_OR_RETURN(Linear qkv, Product(prefix, {{"q_proj"}, {"k_proj"}, {"v_proj"}}));
    REPRISE_ASSIGN_OR_RETURN(Linear out, Product(prefix, {{"out_proj"}}));
    REPRISE_ASSIGN_OR_RETURN(BartNorm norm, Norm(layer + "self_attn_layer_norm"));
    return BartSelfAttention{.qkv = std::move(qkv), .out = std::move(out), .norm = std::move(norm)};
  }

  absl::StatusOr<BartCrossAttention> Cross(const std::string& layer) {
    const std::string prefix = layer + "encoder_attn.";
    REPRISE_ASSIGN_OR_RETURN(Linear q, Product(prefix, {{"q_proj"}}));
    REPRISE_ASSIGN_OR_RETURN(Linear kv, Product(prefix, {{"k_proj"}, {"v_proj"}}));
    REPRISE_ASSIGN_OR_RETURN(Linear out, Product(prefix, {{"out_proj"}}));
    REPRISE_ASSIGN_OR_RETURN(BartNorm norm, Norm(layer + "encoder_attn_layer_norm"));
    return BartCrossAttention{
        .q = std::move(q), .kv = std::move(kv), .out = std::move(out), .norm = std::move(norm)};
  }

  absl::StatusOr<BartFeedForward> FeedForward(const std::string& layer) {
    REPRISE_ASSIGN_OR_RETURN(Linear up, Product(layer, {{"fc1"}}));
    REPRISE_ASSIGN_OR_RETURN(Linear down, Product(layer, {{"fc2"}}));
    REPRISE_ASSIGN_OR_RETURN(BartNorm norm, Norm(layer + "final_layer_norm"));
    return BartFeedForward{.up = std::move(up), .down = std::move(down), .norm = std::move(norm)};
  }

  CheckpointReader& reader_;
  const BartConfig& config_;
};

absl::StatusOr<BartWeights> ReadAll(CheckpointReader& reader, const BartConfig& config, DType dtype,
                                    const LoadBartWeightsOptions& options) {
  PartReader parts(reader, config);
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, parts.Tensor(kEmbedding));
  REPRISE_ASSIGN_OR_RETURN(BartInput encoder_input, parts.Input("encoder"));
  REPRISE_ASSIGN_OR_RETURN(BartInput decoder_input, parts.Input("decoder"));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor logits_bias, parts.Tensor(kLogitsBias));
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(embedding, std::nullopt));
  BartWeights weights = {.embedding = std::move(embedding),
                         .encoder_input = std::move(encoder_input),
                         .encoder = {},
                         .decoder_input = std::move(decoder_input),
                         .decoder = {},
                         .lm_head = std::move(lm_head),
                         .logits_bias = std::move(logits_bias),
                         .dtype = dtype};
  for (int layer = 0; layer < config.encoder.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(BartEncoderLayer read, parts.EncoderLayer(layer));
    weights.encoder.push_back(std::move(read));
  }
  for (int layer = 0; layer < config.decoder.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(BartDecoderLayer read, parts.DecoderLayer(layer));
    weights.decoder.push_back(std::move(read));
  }
  REPRISE_RETURN_IF_ERROR(reader.Run({.on_progress = options.on_progress}));
  return weights;
}

// The tensors of a stack; `attentions`: how its layers call theirs.
void AddStack(const char* stack, const BartStackConfig& config, const BartConfig& model,
              const std::vector<const char*>& attentions, std::vector<ExpectedTensor>& tensors) {
  const int64_t width = model.d_model;
  const auto add = [&](const std::string& name, int64_t out, int64_t in) {
    tensors.push_back({name + ".weight", {out, in}});
    tensors.push_back({name + ".bias", {out}});
  };
  const auto add_norm = [&](const std::string& name) {
    tensors.push_back({name + ".weight", {width}});
    tensors.push_back({name + ".bias", {width}});
  };
  const std::string prefix = absl::StrCat("model.", stack, ".");
  tensors.push_back(
      {prefix + "embed_positions.weight", {int64_t{model.max_seq_len} + kPositionOffset, width}});
  add_norm(prefix + "layernorm_embedding");
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = LayerName(stack, layer);
    for (const char* attention : attentions) {
      for (const char* projection : {".q_proj", ".k_proj", ".v_proj", ".out_proj"}) {
        add(absl::StrCat(name, attention, projection), width, width);
      }
      add_norm(absl::StrCat(name, attention, "_layer_norm"));
    }
    add(name + "fc1", config.ffn_dim, width);
    add(name + "fc2", width, config.ffn_dim);
    add_norm(name + "final_layer_norm");
  }
}

// Names of what is tied to the embedding.
bool IsTied(const std::string& name) {
  return name == "lm_head.weight" || name == "model.encoder.embed_tokens.weight" ||
         name == "model.decoder.embed_tokens.weight";
}

class WeightsCheck {
 public:
  explicit WeightsCheck(const BartConfig& config) : width_(config.d_model) {}

  absl::Status Matrix(const char* name, const Linear& linear, int64_t in, int64_t out) {
    return dims_.Check(name, linear.weight(), {out, in});
  }
  absl::Status Norm(const char* name, const BartNorm& norm) {
    REPRISE_RETURN_IF_ERROR(dims_.Check(name, norm.weight, {width_}));
    return dims_.Check(name, norm.bias, {width_});
  }
  absl::Status Self(const BartSelfAttention& self) {
    REPRISE_RETURN_IF_ERROR(Matrix("self.qkv", self.qkv, width_, 3 * width_));
    REPRISE_RETURN_IF_ERROR(Matrix("self.out", self.out, width_, width_));
    return Norm("self.norm", self.norm);
  }
  absl::Status Cross(const BartCrossAttention& cross) {
    REPRISE_RETURN_IF_ERROR(Matrix("cross.q", cross.q, width_, width_));
    REPRISE_RETURN_IF_ERROR(Matrix("cross.kv", cross.kv, width_, 2 * width_));
    REPRISE_RETURN_IF_ERROR(Matrix("cross.out", cross.out, width_, width_));
    return Norm("cross.norm", cross.norm);
  }
  absl::Status FeedForward(const BartFeedForward& layer, int64_t ffn_dim) {
    REPRISE_RETURN_IF_ERROR(Matrix("feed_forward.up", layer.up, width_, ffn_dim));
    REPRISE_RETURN_IF_ERROR(Matrix("feed_forward.down", layer.down, ffn_dim, width_));
    return Norm("feed_forward.norm", layer.norm);
  }

 private:
  const int64_t width_;
  ShapeChecker dims_;
};

absl::Status CheckNumLayers(const char* name, size_t got, int expected) {
  if (static_cast<int>(got) == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have num_layers: expected ", expected, ", got ", got));
}

}  // namespace

std::vector<ExpectedTensor> BartTensors(const BartConfig& config) {
  std::vector<ExpectedTensor> tensors = {{kEmbedding, {config.vocab_size, config.d_model}},
                                         {kLogitsBias, {1, config.vocab_size}}};
  AddStack("encoder", config.encoder, config, {"self_attn"}, tensors);
  AddStack("decoder", config.decoder, config, {"self_attn", "encoder_attn"}, tensors);
  return tensors;
}

absl::StatusOr<BartWeights> LoadBartWeights(const std::string& folder, const BartConfig& config,
                                            const LoadBartWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(folder));
  const absl::Status fits = CheckTensors(BartTensors(config), opened.tensors(), IsTied);
  if (!fits.ok()) return absl::Status(fits.code(), absl::StrCat(folder, ": ", fits.message()));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype, ChooseDType(*checkpoint, kEmbedding, options.dtype));
  return CatchTorchOr([&]() -> absl::StatusOr<BartWeights> {
    CheckpointReader reader(checkpoint, options.device, dtype);
    return ReadAll(reader, config, dtype, options);
  });
}

absl::Status CheckBartWeights(const BartConfig& config, const BartWeights& weights) {
  const int64_t width = config.d_model;
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("embedding", weights.embedding, {config.vocab_size, width},
                                     ToScalarType(weights.dtype)));
  REPRISE_RETURN_IF_ERROR(dims.Check("logits_bias", weights.logits_bias, {1, config.vocab_size}));
  WeightsCheck check(config);
  REPRISE_RETURN_IF_ERROR(check.Matrix("lm_head", weights.lm_head, width, config.vocab_size));
  for (const BartInput* input : {&weights.encoder_input, &weights.decoder_input}) {
    REPRISE_RETURN_IF_ERROR(dims.Check("positions", input->positions, {config.max_seq_len, width}));
    REPRISE_RETURN_IF_ERROR(check.Norm("input.norm", input->norm));
  }
  REPRISE_RETURN_IF_ERROR(
      CheckNumLayers("encoder", weights.encoder.size(), config.encoder.num_layers));
  for (const BartEncoderLayer& layer : weights.encoder) {
    REPRISE_RETURN_IF_ERROR(check.Self(layer.self));
    REPRISE_RETURN_IF_ERROR(check.FeedForward(layer.feed_forward, config.encoder.ffn_dim));
  }
  REPRISE_RETURN_IF_ERROR(
      CheckNumLayers("decoder", weights.decoder.size(), config.decoder.num_layers));
  for (const BartDecoderLayer& layer : weights.decoder) {
    REPRISE_RETURN_IF_ERROR(check.Self(layer.self));
    REPRISE_RETURN_IF_ERROR(check.Cross(layer.cross));
    REPRISE_RETURN_IF_ERROR(check.FeedForward(layer.feed_forward, config.decoder.ffn_dim));
  }
  return absl::OkStatus();
}

}  // namespace reprise
