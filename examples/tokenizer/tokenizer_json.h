// What a tokenizer.json of Hugging Face says, if it describes a tokenizer of the kinds that are
// implemented: BPE of bytes or of characters, as Llama, Mistral, Qwen, Gemma, DeepSeek and BART
// have.
//
//   normalizer      normalizer_json.h
//   pre_tokenizer   pre_tokenizer_json.h
//   model           bpe_json.h
//   post_processor  template_json.h
//   decoder         decoder_json.h
//
// Everything else would give other tokens, so it is refused by name, as is a member that is not
// known.
// Thread safety: pure functions.

#ifndef EXAMPLES_TOKENIZER_TOKENIZER_JSON_H_
#define EXAMPLES_TOKENIZER_TOKENIZER_JSON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/tokenizer/added_tokens.h"
#include "examples/tokenizer/bpe_json.h"
#include "examples/tokenizer/pre_tokenizer.h"
#include "examples/tokenizer/template_json.h"
#include "examples/tokenizer/text_decoder.h"
#include "examples/tokenizer/text_normalizer.h"
#include "nlohmann/json.hpp"

namespace reprise {

struct TokenizerSpec {
  std::vector<AddedToken> added_tokens = {};
  std::vector<NormalizerStep> normalizer = {};
  std::vector<PreTokenizerStep> pre_tokenizer = {};
  BpeSpec model = {};
  TextTemplate text_template = {};
  std::vector<DecoderStep> decoder = {};
};

// Reads the members, each for itself; whether they fit together is for Tokenizer::Create() to say.
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const nlohmann::json& tokenizer,
                                                 const std::string& file = "tokenizer.json");

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_TOKENIZER_JSON_H_
