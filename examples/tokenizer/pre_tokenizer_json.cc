#include "examples/tokenizer/pre_tokenizer_json.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "examples/tokenizer/tokenizer_parts.h"

namespace reprise {
namespace {

// What ByteLevel splits by unless it is told not to: GPT-2's pattern.
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

// What char::is_numeric() of Rust says are digits.
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
  // Files from before there were schemes say whether a space is put before everything.
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

}  // namespace

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

}  // namespace reprise
