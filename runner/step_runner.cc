#include "reprise/runner/step_runner.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status StepRunner::CheckTokens(std::string_view argument,
                                     absl::Span<const int32_t> tokens) const {
  const int vocab_size = shape().vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(argument), " must hold ids in [0, ",
                                                   vocab_size, "): got ", tokens[i], " at index ",
                                                   i));
  }
  return absl::OkStatus();
}

}  // namespace reprise
