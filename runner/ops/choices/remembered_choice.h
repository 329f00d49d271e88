// The choice of an algorithm for a matrix product as a text, for a ChoiceFile. No LibTorch, no
// CUDA.
//
// Thread safety: pure functions.

#ifndef REPRISE_RUNNER_OPS_CHOICES_REMEMBERED_CHOICE_H_
#define REPRISE_RUNNER_OPS_CHOICES_REMEMBERED_CHOICE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "reprise/runner/ops/few_rows/tile_linear_plan.h"

namespace reprise {

struct RememberedChoice {
  std::array<uint64_t, 8> algorithm = {};  // a cublasLtMatmulAlgo_t, of one version of the library
  int skinny_strip = 0;                    // as in LinearChoice
  std::optional<TileForm> tile_form = std::nullopt;

  friend bool operator==(const RememberedChoice&, const RememberedChoice&) = default;
};

// "tiles 2 1 4 1, 000000000000001f ...".
std::string ToText(const RememberedChoice& choice);

// nullopt if the text is not what ToText() makes of a choice with a strip and a form that exist.
std::optional<RememberedChoice> RememberedChoiceFrom(const std::string& text);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CHOICES_REMEMBERED_CHOICE_H_
