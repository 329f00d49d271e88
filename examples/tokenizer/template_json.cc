#include "examples/tokenizer/template_json.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/tokenizer/token_ids.h"
#include "examples/tokenizer/tokenizer_parts.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;

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

}  // namespace

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

}  // namespace reprise
