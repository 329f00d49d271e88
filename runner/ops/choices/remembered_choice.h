// The choice of a GEMM algorithm as a text, for a ChoiceFile. Does not depend on LibTorch or CUDA.
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
  std::array<uint64_t, 8> algorithm = {};  // a cublasLtMatmulAlgo_t of one library version
  int skinny_strip = 0;                    // as in LinearChoice
  std::optional<TileForm> tile_form = std::nullopt;

  friend bool operator==(const RememberedChoice&, const RememberedChoice&) = default;
};

// Returns a text such as "tiles 2 1 4 1 0 000000000000001f ...".
std::string ToText(const RememberedChoice& choice);

// Returns nullopt unless the text is the output of ToText() for a choice whose strip and form
// exist.
std::optional<RememberedChoice> RememberedChoiceFrom(const std::string& text);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_CHOICES_REMEMBERED_CHOICE_H_
