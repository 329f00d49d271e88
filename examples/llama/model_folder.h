// A Hugging Face model folder but for its weights: the config and, if it is there, the tokenizer.
//
//   REPRISE_ASSIGN_OR_RETURN(ModelFolder folder, ModelFolder::Open("models/jargon-llama"));
//   if (!folder.tokenizer.has_value()) ...   // the model takes token ids only

#ifndef EXAMPLES_LLAMA_MODEL_FOLDER_H_
#define EXAMPLES_LLAMA_MODEL_FOLDER_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "examples/llama/llama_config.h"
#include "examples/llama/tokenizer.h"

namespace reprise {

struct ModelFolder {
  std::string path;
  LlamaConfig config;
  std::optional<Tokenizer> tokenizer;

  // Errors: NotFound if there is no such folder; those of LoadLlamaConfig(); those of
  // Tokenizer::Load() if <path>/tokenizer.json exists.
  static absl::StatusOr<ModelFolder> Open(const std::string& path);
};

// The folder of the model that comes with the project. Errors: NotFound if it is not where
// data_path.h looks.
absl::StatusOr<std::string> DefaultModelFolder();

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_MODEL_FOLDER_H_
