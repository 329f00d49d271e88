// Unstable: any version may change this header (docs/embedding.md).
//
// Reads the part of a tokenizer_config.json that changes which tokens a text becomes:
// `add_bos_token` and `add_eos_token`.
//
//   TokenizerSpec spec = ...;  // of tokenizer.json
//   REPRISE_RETURN_IF_ERROR(ApplyTokenizerConfig(config, "tokenizer_config.json", spec));
//
// Transformers 4 gives the tokenizers of some classes a template of these fields, in place of the
// template of tokenizer.json: Llama, CodeLlama, Gemma and Cohere ("LlamaTokenizer" or
// "LlamaTokenizerFast"). DeepSeek-R1-Distill-Qwen has its BOS from there. Other classes, such as
// Qwen2Tokenizer, ignore the fields.
//
// An absent field leaves that side of tokenizer.json's template as it is, as transformers 5 does,
// which removes both fields when it saves a tokenizer.
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_TOKENIZER_TOKENIZER_CONFIG_H_
#define REPRISE_HF_TOKENIZER_TOKENIZER_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/hf/tokenizer/tokenizer_json.h"

namespace reprise {

// Sets the prefix and the suffix of `spec.text_template` as the class of `config` does: true is the
// class's token alone, `bos_token` or `eos_token`; false is no token. Changes nothing for other
// classes. Errors, with `spec` unchanged: InvalidArgument, naming `file` and the member, if a field
// has another type, or if the token is not in `spec`.
absl::Status ApplyTokenizerConfig(const nlohmann::json& config, const std::string& file,
                                  TokenizerSpec& spec);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TOKENIZER_CONFIG_H_
