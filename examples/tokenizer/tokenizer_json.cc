#include "examples/tokenizer/tokenizer_json.h"

#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "examples/llama/json_fields.h"
#include "examples/tokenizer/decoder_json.h"
#include "examples/tokenizer/normalizer_json.h"
#include "examples/tokenizer/pre_tokenizer_json.h"
#include "examples/tokenizer/token_ids.h"
#include "examples/tokenizer/tokenizer_parts.h"

namespace reprise {
namespace {

using nlohmann::json;

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
    REPRISE_RETURN_IF_ERROR(ExpectUnused(fields, "single_word"));
    REPRISE_ASSIGN_OR_RETURN(token.strips_left, fields.Bool("lstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.strips_right, fields.Bool("rstrip"));
    REPRISE_ASSIGN_OR_RETURN(token.is_normalized, fields.Bool("normalized"));
    REPRISE_ASSIGN_OR_RETURN(token.is_special, fields.Bool("special"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const json& tokenizer, const std::string& file) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::Of(tokenizer, file));
  REPRISE_RETURN_IF_ERROR(
      root.RefuseOthers({"version", "truncation", "padding", "added_tokens", "normalizer",
                         "pre_tokenizer", "post_processor", "decoder", "model"}));
  REPRISE_RETURN_IF_ERROR(ExpectString(root, "version", "1.0"));
  for (const char* name : {"truncation", "padding"}) {
    REPRISE_RETURN_IF_ERROR(ExpectUnused(root, name));
  }
  // The model's type comes first: of a tokenizer of another kind it says most.
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
