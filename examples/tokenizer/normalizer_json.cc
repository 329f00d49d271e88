#include "examples/tokenizer/normalizer_json.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "examples/tokenizer/tokenizer_parts.h"

namespace reprise {
namespace {

constexpr size_t kMaxGrowth = 64;

}  // namespace

absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts,
                           Parts(root, "normalizer", "normalizers"));
  ReplaceReader replaces;
  std::vector<NormalizerStep> steps;
  for (const JsonFields& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (type == "Prepend") {
      REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", "prepend"}));
      REPRISE_ASSIGN_OR_RETURN(std::string text, part.String("prepend"));
      steps.emplace_back(PrependStep{std::move(text)});
    } else if (type == "Replace") {
      REPRISE_ASSIGN_OR_RETURN(ReplaceStep step, replaces.Read(part));
      steps.emplace_back(std::move(step));
    } else if (type == "NFC") {
      REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type"}));
      steps.emplace_back(std::in_place_type<ComposeStep>);
    } else {
      return part.Unexpected("type", "\"Prepend\", \"Replace\", \"NFC\" or \"Sequence\"");
    }
  }
  return steps;
}

absl::StatusOr<ReplaceStep> ReplaceReader::Read(const JsonFields& part) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", "pattern", "content"}));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields pattern, part.Object("pattern"));
  REPRISE_RETURN_IF_ERROR(pattern.RefuseOthers({"String"}));
  ReplaceStep step;
  REPRISE_ASSIGN_OR_RETURN(step.what, NonEmptyString(pattern, "String"));
  REPRISE_ASSIGN_OR_RETURN(step.by, part.String("content"));
  growth_ *= std::max<size_t>((step.by.size() + step.what.size() - 1) / step.what.size(), 1);
  if (growth_ > kMaxGrowth) {
    return part.Unexpected("content", "a replacement by which texts grow no more than 64-fold");
  }
  return step;
}

}  // namespace reprise
