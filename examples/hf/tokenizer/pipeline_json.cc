#include "reprise/hf/tokenizer/pipeline_json.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "reprise/base/status_macros.h"
#include "reprise/hf/tokenizer/tokenizer_parts.h"

namespace reprise {
namespace {

constexpr size_t kMaxGrowth = 64;

// Reads the Replaces of one list: {"pattern": {"String": "a"}, "content": "b"}. Refused, too, if
// texts can grow more than 64-fold by all of them: a hostile file would fill the memory.
class ReplaceReader {
 public:
  absl::StatusOr<ReplaceStep> Read(const JsonFields& part);

 private:
  size_t growth_ = 1;  // by those that were read, at most
};

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

// The pattern by which ByteLevel splits unless use_regex is false: GPT-2's.
constexpr char kGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonFields& part) {
  REPRISE_ASSIGN_OR_RETURN(const std::string name, part.String("behavior"));
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return part.Unexpected("behavior",
                         "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or "
                         "\"Contiguous\"");
}

absl::StatusOr<SplitStep> ReadSplit(const JsonFields& part) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", "pattern", "behavior", "invert"}));
  SplitStep step;
  REPRISE_ASSIGN_OR_RETURN(step.behavior, ReadBehavior(part));
  REPRISE_ASSIGN_OR_RETURN(const bool is_inverted, BoolOr(part, "invert", false));
  step.of = is_inverted ? SplitStep::kOthers : SplitStep::kMatches;
  REPRISE_ASSIGN_OR_RETURN(const JsonFields pattern, part.Object("pattern"));
  REPRISE_RETURN_IF_ERROR(pattern.RefuseOthers({"Regex", "String"}));
  const bool is_literal = pattern.Find("String") != nullptr;
  if (is_literal && pattern.Find("Regex") != nullptr) {
    return part.Unexpected("pattern", "a Regex or a String");
  }
  step.kind = is_literal ? SplitStep::kLiteral : SplitStep::kExpression;
  REPRISE_ASSIGN_OR_RETURN(step.pattern, NonEmptyString(pattern, is_literal ? "String" : "Regex"));
  return step;
}

// The digits by Rust's char::is_numeric().
absl::StatusOr<SplitStep> ReadDigits(const JsonFields& part) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"type", "individual_digits"}));
  REPRISE_ASSIGN_OR_RETURN(const bool individually, BoolOr(part, "individual_digits", false));
  return SplitStep{
      .pattern = R"(\p{N})",
      .behavior = individually ? SplitBehavior::kIsolated : SplitBehavior::kContiguous};
}

absl::Status AppendMetaspace(const JsonFields& part, std::vector<PreTokenizerStep>& steps) {
  REPRISE_RETURN_IF_ERROR(part.RefuseOthers(
      {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
  REPRISE_ASSIGN_OR_RETURN(const std::string symbol, OneCharacter(part, "replacement"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                           part.OptionalString("prepend_scheme"));
  REPRISE_ASSIGN_OR_RETURN(const bool adds_prefix, BoolOr(part, "add_prefix_space", true));
  REPRISE_ASSIGN_OR_RETURN(const bool splits, BoolOr(part, "split", true));
  steps.emplace_back(ReplaceStep{" ", symbol});
  // Files older than schemes have a flag for a space before the whole text.
  const std::string where = scheme.value_or(adds_prefix ? "always" : "never");
  if (where == "always") {
    steps.emplace_back(SpaceStep{symbol, SpaceStep::kEverywhere});
  } else if (where == "first") {
    steps.emplace_back(SpaceStep{symbol, SpaceStep::kFirst});
  } else if (where != "never") {
    return part.Unexpected("prepend_scheme", "\"always\", \"first\" or \"never\"");
  }
  if (splits) {
    steps.push_back(SplitStep{.pattern = symbol,
                              .kind = SplitStep::kLiteral,
                              .behavior = SplitBehavior::kMergedWithNext});
  }
  return absl::OkStatus();
}

// All but the alphabet, which is a matter of the vocabulary.
absl::Status AppendByteLevel(const JsonFields& part, std::vector<PreTokenizerStep>& steps) {
  // trim_offsets is about places in the text, which are not given out.
  REPRISE_RETURN_IF_ERROR(
      part.RefuseOthers({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  REPRISE_ASSIGN_OR_RETURN(const bool adds_space, BoolOr(part, "add_prefix_space", true));
  REPRISE_ASSIGN_OR_RETURN(const bool splits, BoolOr(part, "use_regex", true));
  if (adds_space) steps.emplace_back(SpaceStep{" ", SpaceStep::kEverywhere});
  if (splits) steps.push_back(SplitStep{.pattern = kGpt2});
  return absl::OkStatus();
}

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

absl::StatusOr<PreTokenizerSpec> ReadPreTokenizer(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts,
                           Parts(root, "pre_tokenizer", "pretokenizers"));
  PreTokenizerSpec spec;
  for (const JsonFields& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (spec.units == SymbolUnits::kBytes) {
      return part.Unexpected("type", "nothing after ByteLevel");
    }
    if (type == "Split") {
      REPRISE_ASSIGN_OR_RETURN(SplitStep step, ReadSplit(part));
      spec.steps.emplace_back(std::move(step));
    } else if (type == "Digits") {
      REPRISE_ASSIGN_OR_RETURN(SplitStep step, ReadDigits(part));
      spec.steps.emplace_back(std::move(step));
    } else if (type == "Metaspace") {
      REPRISE_RETURN_IF_ERROR(AppendMetaspace(part, spec.steps));
    } else if (type == "ByteLevel") {
      REPRISE_RETURN_IF_ERROR(AppendByteLevel(part, spec.steps));
      spec.units = SymbolUnits::kBytes;
    } else {
      return part.Unexpected("type",
                             "\"Split\", \"Digits\", \"Metaspace\", \"ByteLevel\" or \"Sequence\"");
    }
  }
  return spec;
}

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
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    auto* const bytes = std::get_if<ByteTokenStep>(&steps[i]);
    const auto* const strip = std::get_if<StripStep>(&steps[i + 1]);
    const bool acts_on_tokens = strip == nullptr || strip->of == StripStep::kEachToken;
    if (bytes != nullptr && acts_on_tokens) bytes->runs = ByteTokenStep::kWhole;
  }
  return steps;
}

}  // namespace reprise
