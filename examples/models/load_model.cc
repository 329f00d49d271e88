#include "reprise/models/load_model.h"

#include <utility>

#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const LoadModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(ModelFolder folder, ModelFolder::Open(path));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadModel(path, folder.config, options));
  return LoadedModel{.folder = std::move(folder), .model = std::move(model)};
}

}  // namespace reprise
