// A Hugging Face model folder but for its weights: the config and, if it is there, the tokenizer.
//
//   REPRISE_ASSIGN_OR_RETURN(ModelFolder folder, ModelFolder::Open("models/jargon-llama"));
//   if (!folder.tokenizer.has_value()) ...   // the model takes token ids only

#ifndef EXAMPLES_LLAMA_MODEL_FOLDER_H_
#define EXAMPLES_LLAMA_MODEL_FOLDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/llama_config.h"
#include "examples/mla/mla_config.h"
#include "examples/seq2seq/bart_config.h"
#include "examples/tokenizer/tokenizer.h"

namespace reprise {

struct ModelFolder {
  std::string path;
  std::variant<LlamaConfig, MlaConfig, BartConfig> config;  // by what config.json says it is of
  std::optional<Tokenizer> tokenizer;

  int max_seq_len() const;
  const std::vector<int32_t>& eos_token_ids() const;

  // Errors: NotFound if there is no such folder; those of LoadLlamaConfig(), LoadMlaConfig()
  // and LoadBartConfig(); those of Tokenizer::Load() if <path>/tokenizer.json exists.
  static absl::StatusOr<ModelFolder> Open(const std::string& path);
};

// The folder of the model that comes with the project. Errors: NotFound if it is not where
// data_path.h looks.
absl::StatusOr<std::string> DefaultModelFolder();

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_MODEL_FOLDER_H_
