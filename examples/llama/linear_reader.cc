#include "examples/llama/linear_reader.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<Linear> AddLinear(CheckpointReader& reader, std::string_view prefix,
                                 const std::vector<TensorPart>& parts, LinearBias bias) {
  const auto add = [&](const char* suffix) {
    std::vector<TensorPart> full = parts;
    for (TensorPart& part : full) part.name = absl::StrCat(std::string(prefix), part.name, suffix);
    return reader.Add(full);
  };
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, add(".weight"));
  std::optional<at::Tensor> added;
  if (bias == LinearBias::kAdded) {
    REPRISE_ASSIGN_OR_RETURN(added, add(".bias"));
  }
  return Linear::Create(std::move(weight), std::move(added));
}

}  // namespace reprise
