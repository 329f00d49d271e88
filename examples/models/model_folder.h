// Unstable: any version may change this header (docs/embedding.md).
//
// A Hugging Face model folder: its config, of any supported family, its tokenizer, and the model.
//
//   REPRISE_ASSIGN_OR_RETURN(ModelFolder folder, ModelFolder::Open("models/jargon-llama"));
//   if (!folder.tokenizer.has_value()) ...   // the model takes token ids only: WhyNoTokenizer()
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
//                            LoadModel(folder.path, folder.config, {}));
//
// Thread safety: as any const object.

#ifndef REPRISE_MODELS_MODEL_FOLDER_H_
#define REPRISE_MODELS_MODEL_FOLDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/weights.h"
#include "reprise/models/bart/bart_config.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/gpt/gpt_config.h"
#include "reprise/runner/model.h"

namespace reprise {

using ModelConfig = std::variant<DecoderConfig, BartConfig, GptConfig>;

// Reads <folder>/config.json, of the family that it names. Errors: InvalidArgument, naming all
// supported families; those of the family's Load...Config().
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder);

// Elements of all weights together.
int64_t NumParameters(const ModelConfig& config);

struct ModelFolder {
  std::string path;
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;
  // The reason why the folder's tokenizer cannot be read. OK if `tokenizer` has a value, and if the
  // folder has no tokenizer.json.
  absl::Status tokenizer_error = {};

  int max_seq_len() const;
  const std::vector<int32_t>& eos_token_ids() const;

  // The reason for a message: "<path> has no tokenizer.json", or what is wrong with the tokenizer.
  // REQUIRES: `tokenizer` is empty.
  std::string WhyNoTokenizer() const;

  // Errors: NotFound if the folder does not exist; the errors of LoadModelConfig(). A tokenizer
  // that Tokenizer::LoadFolder() cannot read is no error: the model takes token ids, and
  // `tokenizer_error` is the reason why it takes no texts.
  static absl::StatusOr<ModelFolder> Open(const std::string& path);
};

// What becomes of a model that cannot be divided over the ranks, as it has too few heads.
enum class Unsharded : int8_t {
  kRefused,
  kReplicated,  // each rank has all of it (runner/ranks/replicated_model.h)
};

struct LoadModelOptions {
  LoadWeightsOptions weights = {};
  // Positions to serve, for models whose tables have a row for each. nullopt: the config's
  // max_seq_len, which it must not exceed.
  std::optional<int> max_position = {};
  MlaCache mla_cache = MlaCache::kLatent;  // of models with MLA
  // The ranks that the model is divided over, this process among them; must outlive the model.
  // Null: one rank. weights.ranks is ignored.
  Collectives* collectives = nullptr;
  Unsharded unsharded = Unsharded::kRefused;
  // The ranks that keys are divided over (RankOptions::context_ranks), which have the same
  // weights; must outlive the model. Null: none. With `collectives`: groups of a grid
  // (distributed/rank_grid.h).
  Collectives* context = nullptr;
};

// Loads the weights of the folder `path`, whose config is `config`. load_model.h has the one-call
// form. Errors: those of CheckDevice(), of LoadWeights() and of the model's Create().
// InvalidArgument if weights.dtype is not float32, float16 or bfloat16, or for a model of fewer
// heads than ranks, unless it is to be replicated. Unimplemented for a context of several ranks and
// a family that does not divide keys (BART).
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& path, const ModelConfig& config,
                                                 const LoadModelOptions& options);

// The folder of the model that comes with the project. Errors: NotFound if it is not where
// paths.h looks.
absl::StatusOr<std::string> DefaultModelFolder();

}  // namespace reprise

#endif  // REPRISE_MODELS_MODEL_FOLDER_H_
