// Unstable: any version may change this header (docs/embedding.md).
//
// Loads a Hugging Face model folder in one call: config, tokenizer and weights.
//
//   REPRISE_ASSIGN_OR_RETURN(LoadedModel loaded,
//                            LoadModel("Llama-3.2-1B", {.weights = {.device = DefaultDevice()}}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(loaded.model.get()));
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int32_t> prompt,
//   loaded.folder.tokenizer->Encode("Hello")); REPRISE_RETURN_IF_ERROR(
//       engine->Add({.prompt = prompt, .stop_tokens = loaded.folder.eos_token_ids()}).status());
//
// To read a config before loading its weights, use ModelFolder::Open() and the LoadModel() of
// model_folder.h: this function calls both.

#ifndef REPRISE_MODELS_LOAD_MODEL_H_
#define REPRISE_MODELS_LOAD_MODEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/models/devices.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"

namespace reprise {

// A model with the parts of its folder that generation needs. The model does not refer to `folder`.
struct LoadedModel {
  ModelFolder folder;  // tokenizer, eos_token_ids(), max_seq_len(), config
  std::unique_ptr<Model> model;
};

// Loads the folder `path`. By default, the weights are in the memory of the host and have the dtype
// of the checkpoint. A folder without tokenizer.json loads without a tokenizer. Every error message
// names the folder, the file or the option.
// Errors: those of ModelFolder::Open() and of LoadModel() in model_folder.h.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path,
                                      const LoadModelOptions& options = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_LOAD_MODEL_H_
