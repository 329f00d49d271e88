#include "examples/tokenizer/decoder_json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "examples/tokenizer/normalizer_json.h"
#include "examples/tokenizer/tokenizer_parts.h"

namespace reprise {
namespace {

constexpr IntRange kStripRange = {.min = 0, .max = 1 << 20};

// Before Fuse every token is stripped, after it the text.
absl::StatusOr<StripStep> ReadStrip(const JsonFields& part, StripStep::Of of) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", "content", "start", "stop"}));
  StripStep step = {.of = of};
  REPRISE_ASSIGN_OR_RETURN(step.character, OneCharacter(part, "content"));
  REPRISE_ASSIGN_OR_RETURN(const int64_t start, part.Int("start", kStripRange));
  step.count = static_cast<int>(start);
  REPRISE_ASSIGN_OR_RETURN(const int64_t stop, part.Int("stop", kStripRange));
  if (stop != 0) {
    return part.Unexpected("stop", "0, as the end of a text is not stripped");
  }
  return step;
}

absl::StatusOr<MetaspaceStep> ReadMetaspace(const JsonFields& part) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers(
      {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
  MetaspaceStep step;
  REPRISE_ASSIGN_OR_RETURN(step.symbol, OneCharacter(part, "replacement"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                           part.OptionalString("prepend_scheme"));
  REPRISE_ASSIGN_OR_RETURN(const bool adds_prefix, BoolOr(part, "add_prefix_space", true));
  step.drops_first = scheme.has_value() ? *scheme != "never" : adds_prefix;
  return step;
}

absl::StatusOr<std::vector<DecoderStep>> ReadByteLevel(const std::vector<JsonFields>& parts) {
  REPRISE_RETURN_IF_ERROR(ExpectString(parts[0], "type", "ByteLevel"));
  // Decoding uses none of the members.
  REPRISE_RETURN_IF_ERROR(
      parts[0].RefuseOthers({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  if (parts.size() > 1) return parts[1].Unexpected("type", "nothing beside ByteLevel");
  return std::vector<DecoderStep>{ByteLevelStep()};
}

}  // namespace

absl::StatusOr<std::vector<DecoderStep>> ReadDecoder(const JsonFields& root, SymbolUnits units) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts, Parts(root, "decoder", "decoders"));
  if (parts.empty()) return root.Unexpected("decoder", "an object");
  if (units == SymbolUnits::kBytes) return ReadByteLevel(parts);
  ReplaceReader replaces;
  std::vector<DecoderStep> steps;
  bool is_fused = false;
  for (const JsonFields& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (type == "Strip") {
      REPRISE_ASSIGN_OR_RETURN(
          StripStep step, ReadStrip(part, is_fused ? StripStep::kText : StripStep::kEachToken));
      steps.emplace_back(std::move(step));
    } else if (is_fused) {
      return part.Unexpected("type", "only \"Strip\" after \"Fuse\"");
    } else if (type == "Fuse") {
      REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type"}));
      is_fused = true;
    } else if (type == "Replace") {
      REPRISE_ASSIGN_OR_RETURN(ReplaceStep step, replaces.Read(part));
      steps.emplace_back(std::move(step));
    } else if (type == "ByteFallback") {
      REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type"}));
      steps.emplace_back(std::in_place_type<ByteTokenStep>);
    } else if (type == "Metaspace") {
      REPRISE_ASSIGN_OR_RETURN(MetaspaceStep step, ReadMetaspace(part));
      steps.emplace_back(std::move(step));
    } else {
      return part.Unexpected("type",
                             "\"Replace\", \"ByteFallback\", \"Metaspace\", \"Fuse\", \"Strip\" or "
                             "\"Sequence\", or \"ByteLevel\" if the pre_tokenizer has it");
    }
  }
  return steps;
}

}  // namespace reprise
