#include "reprise/hf/tokenizer/tokenizer_json.h"

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/pipeline_json.h"
#include "reprise/hf/tokenizer/tokenizer_parts.h"

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

absl::StatusOr<TextTemplate> ReadTemplateProcessing(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({"type", "single", "pair", "special_tokens"}));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields special_tokens, fields.Object("special_tokens"));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts, Objects(fields, "single"));
  TextTemplate result;
  std::vector<int32_t>* side = &result.prefix;
  for (const JsonFields& part : parts) {
    REPRISE_RETURN_IF_ERROR(part.RefuseOthers({"SpecialToken", "Sequence"}));
    if (part.Find("Sequence") != nullptr) {
      REPRISE_ASSIGN_OR_RETURN(const JsonFields sequence, part.Object("Sequence"));
      REPRISE_RETURN_IF_ERROR(ExpectString(sequence, "id", "A"));
      if (side == &result.suffix) return part.Unexpected("Sequence", "the text once only");
      side = &result.suffix;
    } else {
      REPRISE_ASSIGN_OR_RETURN(const JsonFields special, part.Object("SpecialToken"));
      REPRISE_ASSIGN_OR_RETURN(const std::string id, special.String("id"));
      REPRISE_ASSIGN_OR_RETURN(const JsonFields token, special_tokens.Object(id));
      REPRISE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, token.Ints("ids", kTokenIdRange));
      side->insert(side->end(), ids.begin(), ids.end());
    }
  }
  if (side == &result.prefix) return fields.Unexpected("single", "a list with the Sequence A");
  return result;
}

// A member that is a token and its id: ["</s>", 2].
absl::StatusOr<int32_t> ReadTokenAndId(const JsonFields& fields, const char* name) {
  const json* const pair = fields.Find(name);
  const bool is_pair = pair != nullptr && pair->is_array() && pair->size() == 2 &&
                       (*pair)[0].is_string() && (*pair)[1].is_number_integer();
  if (!is_pair || (*pair)[1] < 0 || (*pair)[1] > kMaxTokenId) {
    return fields.Unexpected(
        name, absl::StrCat("a token and its id in [0, ", kMaxTokenId, "], as [\"</s>\", 2]"));
  }
  return (*pair)[1].get<int32_t>();
}

// One text is "cls text sep". The other members are about places in the text.
absl::StatusOr<TextTemplate> ReadRoberta(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(
      fields.RefuseOthers({"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
  REPRISE_ASSIGN_OR_RETURN(const int32_t begin, ReadTokenAndId(fields, "cls"));
  REPRISE_ASSIGN_OR_RETURN(const int32_t end, ReadTokenAndId(fields, "sep"));
  return TextTemplate{.prefix = {begin}, .suffix = {end}};
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonFields& root) {
  std::vector<AddedToken> tokens;
  if (root.Find("added_tokens") == nullptr) return tokens;
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> objects, Objects(root, "added_tokens"));
  for (const JsonFields& fields : objects) {
    REPRISE_RETURN_IF_ERROR(fields.RefuseOthers(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    REPRISE_ASSIGN_OR_RETURN(const int64_t id, fields.Int("id", kTokenIdRange));
    token.id = static_cast<int32_t>(id);
    REPRISE_ASSIGN_OR_RETURN(token.content, fields.String("content"));
    REPRISE_ASSIGN_OR_RETURN(token.is_single_word, BoolOr(fields, "single_word", false));
    REPRISE_ASSIGN_OR_RETURN(token.strips_left, fields.Bool("lstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.strips_right, fields.Bool("rstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.is_normalized, fields.Bool("normalized"));
    REPRISE_ASSIGN_OR_RETURN(token.is_special, fields.Bool("special"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// `units`: those of the pre-tokenizer. Merges may be "a b" or ["a", "b"].
absl::StatusOr<BpeSpec> ReadBpe(const JsonFields& root, SymbolUnits units) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields model, root.Object("model"));
  // Files older than the other model types do not name their type.
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

absl::StatusOr<TextTemplate> ReadTemplate(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts,
                           Parts(root, "post_processor", "processors"));
  std::optional<TextTemplate> result;
  for (const JsonFields& part : parts) {
    REPRISE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (type == "ByteLevel") continue;
    const bool is_roberta = type == "RobertaProcessing";
    if (type != "TemplateProcessing" && !is_roberta) {
      return part.Unexpected("type",
                             "\"ByteLevel\", \"TemplateProcessing\" or \"RobertaProcessing\"");
    }
    if (result) return part.Unexpected("type", "one template only");
    REPRISE_ASSIGN_OR_RETURN(result, is_roberta ? ReadRoberta(part) : ReadTemplateProcessing(part));
  }
  return result.value_or(TextTemplate());
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const json& tokenizer, const std::string& file) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::Of(tokenizer, file));
  REPRISE_RETURN_IF_ERROR(
      root.RefuseOthers({"version", "truncation", "padding", "added_tokens", "normalizer",
                         "pre_tokenizer", "post_processor", "decoder", "model"}));
  REPRISE_RETURN_IF_ERROR(ExpectString(root, "version", "1.0"));
  for (const char* name : {"truncation", "padding"}) {  // accepted, but not used
    REPRISE_RETURN_IF_ERROR(root.OptionalObject(name).status());
  }
  // The model's type is checked first: for other kinds of tokenizers it gives the most useful
  // error.
  REPRISE_ASSIGN_OR_RETURN(const JsonFields model, root.Object("model"));
  if (model.Find("type") != nullptr) REPRISE_RETURN_IF_ERROR(ExpectString(model, "type", "BPE"));
  TokenizerSpec spec;
  REPRISE_ASSIGN_OR_RETURN(spec.normalizer, ReadNormalizer(root));
  REPRISE_ASSIGN_OR_RETURN(PreTokenizerSpec pre_tokenizer, ReadPreTokenizer(root));
  spec.pre_tokenizer = std::move(pre_tokenizer.steps);
  REPRISE_ASSIGN_OR_RETURN(spec.model, ReadBpe(root, pre_tokenizer.units));
  REPRISE_ASSIGN_OR_RETURN(spec.added_tokens, ReadAddedTokens(root));
  REPRISE_ASSIGN_OR_RETURN(spec.text_template, ReadTemplate(root));
  REPRISE_ASSIGN_OR_RETURN(spec.decoder, ReadDecoder(root, pre_tokenizer.units));
  return spec;
}

}  // namespace reprise
