#include "examples/tokenizer/bpe_json.h"

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/strict_json.h"
#include "examples/tokenizer/token_ids.h"
#include "examples/tokenizer/tokenizer_parts.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<std::pair<std::string, int32_t>>> ReadVocabulary(
    const JsonFields& model) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields vocab, model.Object("vocab"));
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  vocabulary.reserve(vocab.object().size());
  for (const auto& [token, value] : vocab.object().items()) {
    if (!value.is_number_integer() || value < 0 || value > kMaxTokenId) {
      return absl::InvalidArgumentError(absl::StrCat(vocab.where(), ": ", DescribeJson(token),
                                                     ": expected an integer in [0, ", kMaxTokenId,
                                                     "], got ", DescribeJson(value)));
    }
    vocabulary.emplace_back(token, value.get<int32_t>());
  }
  return vocabulary;
}

std::optional<Merge> ReadMerge(const json& value) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return Merge(value[0].get<std::string>(), value[1].get<std::string>());
  }
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return std::nullopt;
  }
  return Merge(text.substr(0, space), text.substr(space + 1));
}

absl::StatusOr<std::vector<Merge>> ReadMerges(const JsonFields& model) {
  REPRISE_ASSIGN_OR_RETURN(const json* const array, model.Array("merges"));
  std::vector<Merge> merges;
  merges.reserve(array->size());
  for (const json& value : *array) {
    std::optional<Merge> merge = ReadMerge(value);
    if (!merge) {
      return absl::InvalidArgumentError(absl::StrCat(
          model.where(), ": merges: number ", merges.size(),
          ": expected \"left right\" or [\"left\", \"right\"], got ", DescribeJson(value)));
    }
    merges.push_back(*std::move(merge));
  }
  return merges;
}

}  // namespace

absl::StatusOr<BpeSpec> ReadBpe(const JsonFields& root, SymbolUnits units) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields model, root.Object("model"));
  // Files from before there were other models do not say of which type theirs is.
  const bool is_unnamed = model.Find("type") == nullptr && model.Find("merges") != nullptr;
  if (!is_unnamed) REPRISE_RETURN_IF_ERROR(ExpectString(model, "type", "BPE"));
  REPRISE_RETURN_IF_ERROR(model.RefuseOthers(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    REPRISE_RETURN_IF_ERROR(ExpectUnused(model, name));
  }
  BpeSpec spec;
  spec.symbols.units = units;
  REPRISE_ASSIGN_OR_RETURN(spec.symbols.unknown_token, model.OptionalString("unk_token"));
  REPRISE_ASSIGN_OR_RETURN(spec.symbols.fuses_unknown, BoolOr(model, "fuse_unk", false));
  REPRISE_ASSIGN_OR_RETURN(spec.symbols.byte_fallback, BoolOr(model, "byte_fallback", false));
  if (spec.symbols.byte_fallback && units == SymbolUnits::kBytes) {
    return model.Unexpected("byte_fallback", "false, as the pre_tokenizer is ByteLevel");
  }
  REPRISE_ASSIGN_OR_RETURN(const bool ignores_merges, BoolOr(model, "ignore_merges", false));
  spec.whole_pieces = ignores_merges ? WholePieces::kLookUp : WholePieces::kMerge;
  REPRISE_ASSIGN_OR_RETURN(spec.vocabulary, ReadVocabulary(model));
  REPRISE_ASSIGN_OR_RETURN(spec.merges, ReadMerges(model));
  return spec;
}

}  // namespace reprise
