#include "reprise/runner/ops/linear_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/elementwise.h"

namespace reprise {
namespace {

std::string DTypes(const LinearChoice& choice) {
  std::string text(DTypeName(choice.dtype));
  if (choice.out_dtype != choice.dtype) {
    text += " -> ";
    text += DTypeName(choice.out_dtype);
  }
  return text;
}

std::string Algorithm(const LinearChoice& choice) {
  if (choice.skinny_strip > 0) return absl::StrCat("few rows, strip ", choice.skinny_strip);
  if (choice.tile_form.has_value()) return absl::StrCat("tiles, ", ToString(*choice.tile_form));
  return absl::StrCat("algorithm ", choice.algorithm, " tile ", choice.tile, " split ",
                      choice.split_k);
}

std::string Reason(const LinearChoice& choice) {
  switch (choice.source) {
    case LinearChoice::Source::kTimed:
      return absl::StrFormat(", %.1f us (first proposal %.1f us, best of %d)", choice.best_us,
                             choice.first_us, choice.num_candidates);
    case LinearChoice::Source::kHeuristic:
      return ", first proposal";
    case LinearChoice::Source::kRemembered:
      return ", remembered";
    case LinearChoice::Source::kCaptured:
      return ", first proposal, chosen during capture";
  }
  return "";
}

}  // namespace

absl::Status LinearContext::MultiplyGated(Activation activation, const at::Tensor& x,
                                          const at::Tensor& weight, const at::Tensor* bias,
                                          const at::Tensor& gate_up, const at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(Multiply(x, weight, bias, gate_up));
  return GateMul(activation, gate_up, out);
}

std::string ToString(const LinearChoice& choice) {
  return absl::StrCat(choice.is_gated ? "gated, " : "",
                      choice.num_rows == 0 ? "any rows" : absl::StrCat("rows ", choice.num_rows),
                      ", ", choice.in_features, " -> ", choice.out_features, " ", DTypes(choice),
                      ": ", Algorithm(choice), Reason(choice));
}

}  // namespace reprise
