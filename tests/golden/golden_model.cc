#include "tests/golden/golden_model.h"

#include "absl/strings/match.h"
#include "examples/llama/llama_model.h"
#include "examples/mla/mla_model.h"
#include "examples/seq2seq/bart_model.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<Model>> LoadGoldenModel(const Golden& golden, c10::Device device,
                                                       DType dtype) {
  if (golden.name == "bart") {
    return BartModel::Load(golden.folder, {.device = device, .dtype = dtype});
  }
  if (absl::StartsWith(golden.name, "deepseek-mla")) {
    return MlaModel::Load(golden.folder, {.device = device, .dtype = dtype});
  }
  return LlamaModel::Load(golden.folder, {.device = device, .dtype = dtype});
}

}  // namespace reprise
