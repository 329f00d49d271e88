#include "tests/golden/golden_model.h"

#include "reprise/base/status_macros.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/model_folder.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<Model>> LoadGoldenModel(const Golden& golden, c10::Device device,
                                                       DType dtype, MlaCache mla_cache,
                                                       Collectives* collectives,
                                                       Collectives* context) {
  REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden.folder));
  return LoadModel(golden.folder, config,
                   {.weights = {.device = device, .dtype = dtype},
                    .mla_cache = mla_cache,
                    .collectives = collectives,
                    .context = context});
}

bool HasExperts(const Model& model) {
  const auto* const llama = dynamic_cast<const DecoderModel*>(&model);
  return llama != nullptr && llama->config().experts.has_value();
}

bool NeedsRouting(const Model& model, const Golden& golden) {
  return HasExperts(model) && !golden.has_bf16_medians;
}

}  // namespace reprise
