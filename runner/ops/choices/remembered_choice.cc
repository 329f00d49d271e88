#include "reprise/runner/ops/choices/remembered_choice.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "reprise/runner/ops/skinny_linear_args.h"

namespace reprise {
namespace {

constexpr size_t kFields = 6;  // fields before the algorithm

}  // namespace

std::string ToText(const RememberedChoice& choice) {
  std::string text;
  if (choice.tile_form.has_value()) {
    const TileForm& form = *choice.tile_form;
    text = absl::StrCat("tiles ", form.cluster, " ", form.row_groups, " ", form.turns, " ",
                        form.boxes, " 0");
  } else if (choice.skinny_strip > 0) {
    text = absl::StrCat("strip ", choice.skinny_strip, " 0 0 0 0");
  } else {
    text = "library 0 0 0 0 0";
  }
  for (const uint64_t word : choice.algorithm) absl::StrAppendFormat(&text, " %016x", word);
  return text;
}

std::optional<RememberedChoice> RememberedChoiceFrom(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  RememberedChoice choice;
  if (parts.size() != kFields + choice.algorithm.size()) return std::nullopt;
  int numbers[kFields - 1] = {};
  for (size_t i = 0; i + 1 < kFields; ++i) {
    if (!absl::SimpleAtoi(parts[i + 1], &numbers[i])) return std::nullopt;
  }
  for (size_t i = 0; i < choice.algorithm.size(); ++i) {
    if (!absl::SimpleHexAtoi(parts[kFields + i], &choice.algorithm[i])) return std::nullopt;
  }
  if (parts[0] == "tiles") {
    choice.tile_form = TileForm{
        .cluster = numbers[0], .row_groups = numbers[1], .turns = numbers[2], .boxes = numbers[3]};
    if (!IsTileForm(*choice.tile_form)) return std::nullopt;
  } else if (parts[0] == "strip") {
    choice.skinny_strip = numbers[0];
    if (choice.skinny_strip < 1 || choice.skinny_strip > kMaxSkinnyStrip) return std::nullopt;
  }
  // The text must not contain anything else, and each number must be in its canonical form.
  if (ToText(choice) != text) return std::nullopt;
  return choice;
}

}  // namespace reprise
