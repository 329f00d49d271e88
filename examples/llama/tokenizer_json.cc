#include "examples/llama/tokenizer_json.h"

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/json_fields.h"
#include "examples/llama/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr IntRange kTokenRange = {.min = 0, .max = kMaxTokenId};

// Members whose absence or emptiness means that a feature is not used.
absl::Status ExpectUnused(const JsonFields& fields, std::string_view name) {
  const json* const value = fields.Find(name);
  if (value == nullptr || *value == "" || *value == false) return absl::OkStatus();
  return fields.Unexpected(name, "null, as this feature is not supported");
}

absl::Status ExpectString(const JsonFields& fields, std::string_view name,
                          std::string_view expected) {
  const json* const value = fields.Find(name);
  if (value != nullptr && *value == expected) return absl::OkStatus();
  return fields.Unexpected(name, DescribeJson(json(expected)));
}

// The objects of an array, each named "<where>: <name>[i]" in messages.
absl::StatusOr<std::vector<JsonFields>> Objects(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(const json* const array, fields.Array(name));
  std::vector<JsonFields> objects;
  for (const json& element : *array) {
    REPRISE_ASSIGN_OR_RETURN(
        JsonFields object,
        JsonFields::Of(element, absl::StrCat(fields.where(), ": ", std::string(name), "[",
                                             objects.size(), "]")));
    objects.push_back(std::move(object));
  }
  return objects;
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonFields& root) {
  std::vector<AddedToken> tokens;
  if (root.Find("added_tokens") == nullptr) return tokens;
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> objects, Objects(root, "added_tokens"));
  for (const JsonFields& fields : objects) {
    REPRISE_RETURN_IF_ERROR(fields.RefuseOthers(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    REPRISE_ASSIGN_OR_RETURN(const int64_t id, fields.Int("id", kTokenRange));
    token.id = static_cast<int32_t>(id);
    REPRISE_ASSIGN_OR_RETURN(token.content, fields.String("content"));
    REPRISE_RETURN_IF_ERROR(ExpectUnused(fields, "single_word"));
    REPRISE_ASSIGN_OR_RETURN(token.strips_left, fields.Bool("lstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.strips_right, fields.Bool("rstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.is_normalized, fields.Bool("normalized"));
    REPRISE_ASSIGN_OR_RETURN(token.is_special, fields.Bool("special"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The pattern of the Split; ByteLevel behind it must do nothing but change the alphabet.
absl::StatusOr<std::string> ReadPreTokenizer(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields sequence, root.Object("pre_tokenizer"));
  REPRISE_RETURN_IF_ERROR(ExpectString(sequence, "type", "Sequence"));
  REPRISE_RETURN_IF_ERROR(sequence.RefuseOthers({"type", "pretokenizers"}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> steps, Objects(sequence, "pretokenizers"));
  if (steps.size() != 2) return sequence.Unexpected("pretokenizers", "a Split and a ByteLevel");

  const JsonFields& split = steps[0];
  REPRISE_RETURN_IF_ERROR(ExpectString(split, "type", "Split"));
  REPRISE_RETURN_IF_ERROR(split.RefuseOthers({"type", "pattern", "behavior", "invert"}));
  REPRISE_RETURN_IF_ERROR(ExpectString(split, "behavior", "Isolated"));
  REPRISE_RETURN_IF_ERROR(ExpectUnused(split, "invert"));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields pattern, split.Object("pattern"));
  REPRISE_RETURN_IF_ERROR(pattern.RefuseOthers({"Regex"}));

  const JsonFields& byte_level = steps[1];
  REPRISE_RETURN_IF_ERROR(ExpectString(byte_level, "type", "ByteLevel"));
  // trim_offsets is about places in the text, which are not given out.
  REPRISE_RETURN_IF_ERROR(
      byte_level.RefuseOthers({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  for (const char* name : {"add_prefix_space", "use_regex"}) {
    REPRISE_ASSIGN_OR_RETURN(const bool is_used, byte_level.Bool(name));
    if (is_used) return byte_level.Unexpected(name, "false");
  }
  return pattern.String("Regex");
}

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

// What stands before and after a single text; a pair of texts is not our business.
struct Template {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

absl::StatusOr<Template> ReadTemplate(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({"type", "single", "pair", "special_tokens"}));
  REPRISE_ASSIGN_OR_RETURN(const JsonFields special_tokens, fields.Object("special_tokens"));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<JsonFields> parts, Objects(fields, "single"));
  Template result;
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
      REPRISE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, token.Ints("ids", kTokenRange));
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
absl::StatusOr<Template> ReadRoberta(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(
      fields.RefuseOthers({"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
  REPRISE_ASSIGN_OR_RETURN(const int32_t begin, ReadTokenAndId(fields, "cls"));
  REPRISE_ASSIGN_OR_RETURN(const int32_t end, ReadTokenAndId(fields, "sep"));
  return Template{.prefix = {begin}, .suffix = {end}};
}

absl::StatusOr<Template> ReadPostProcessor(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> processor,
                           root.OptionalObject("post_processor"));
  if (!processor) return Template();
  std::vector<JsonFields> steps = {*processor};
  if (processor->Find("type") != nullptr && *processor->Find("type") == "Sequence") {
    REPRISE_RETURN_IF_ERROR(processor->RefuseOthers({"type", "processors"}));
    REPRISE_ASSIGN_OR_RETURN(steps, Objects(*processor, "processors"));
  }
  std::optional<Template> result;
  for (const JsonFields& step : steps) {
    REPRISE_ASSIGN_OR_RETURN(const std::string type, step.String("type"));
    if (type == "ByteLevel") continue;  // moves places in the text only
    const bool is_roberta = type == "RobertaProcessing";
    if (type != "TemplateProcessing" && !is_roberta) {
      return step.Unexpected("type",
                             "\"ByteLevel\", \"TemplateProcessing\" or \"RobertaProcessing\"");
    }
    if (result) return step.Unexpected("type", "one template only");
    REPRISE_ASSIGN_OR_RETURN(result, is_roberta ? ReadRoberta(step) : ReadTemplate(step));
  }
  return result.value_or(Template());
}

// A spec with the members that the model says.
absl::StatusOr<TokenizerSpec> ReadModel(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields model, root.Object("model"));
  REPRISE_RETURN_IF_ERROR(ExpectString(model, "type", "BPE"));
  REPRISE_RETURN_IF_ERROR(model.RefuseOthers(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  // fuse_unk is about unknown tokens, of which there are none.
  for (const char* name : {"dropout", "unk_token", "continuing_subword_prefix",
                           "end_of_word_suffix", "byte_fallback"}) {
    REPRISE_RETURN_IF_ERROR(ExpectUnused(model, name));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> ignore_merges,
                           model.OptionalBool("ignore_merges"));
  TokenizerSpec spec;
  spec.whole_pieces = ignore_merges.value_or(false) ? WholePieces::kLookUp : WholePieces::kMerge;
  REPRISE_ASSIGN_OR_RETURN(spec.vocabulary, ReadVocabulary(model));
  REPRISE_ASSIGN_OR_RETURN(spec.merges, ReadMerges(model));
  return spec;
}

absl::Status CheckDecoder(const JsonFields& root) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields decoder, root.Object("decoder"));
  REPRISE_RETURN_IF_ERROR(ExpectString(decoder, "type", "ByteLevel"));
  // Decoding uses none of them.
  return decoder.RefuseOthers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const json& tokenizer, const std::string& file) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::Of(tokenizer, file));
  REPRISE_RETURN_IF_ERROR(
      root.RefuseOthers({"version", "truncation", "padding", "added_tokens", "normalizer",
                         "pre_tokenizer", "post_processor", "decoder", "model"}));
  REPRISE_RETURN_IF_ERROR(ExpectString(root, "version", "1.0"));
  for (const char* name : {"truncation", "padding", "normalizer"}) {
    REPRISE_RETURN_IF_ERROR(ExpectUnused(root, name));
  }
  // The model's type comes first: of a tokenizer of another kind it says most.
  REPRISE_ASSIGN_OR_RETURN(TokenizerSpec spec, ReadModel(root));
  REPRISE_ASSIGN_OR_RETURN(spec.split_pattern, ReadPreTokenizer(root));
  REPRISE_ASSIGN_OR_RETURN(spec.added_tokens, ReadAddedTokens(root));
  REPRISE_ASSIGN_OR_RETURN(Template sides, ReadPostProcessor(root));
  spec.prefix = std::move(sides.prefix);
  spec.suffix = std::move(sides.suffix);
  REPRISE_RETURN_IF_ERROR(CheckDecoder(root));
  return spec;
}

}  // namespace reprise
