// Unstable: any version may change this header (docs/embedding.md).
//
// Reads a tokenizer.json of Hugging Face of the supported kinds: BPE of bytes or of characters, as
// in Llama, Mistral, Qwen, Gemma, DeepSeek and BART.
//
//   normalizer, pre_tokenizer, decoder   pipeline_json.h
//   model            BPE without dropout and affixes
//   post_processor   none, ByteLevel (which moves places in the text only), TemplateProcessing,
//                    RobertaProcessing, or a Sequence with one template
//
//   truncation, padding  not used: left over from whoever saved the file while encoding a batch.
//                    transformers resets them before it encodes a text
//
// Everything else would give other tokens, so it is refused by name, and so are unknown members.
// Thread safety: pure functions.

#ifndef REPRISE_HF_TOKENIZER_TOKENIZER_JSON_H_
#define REPRISE_HF_TOKENIZER_TOKENIZER_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/hf/tokenizer/added_tokens.h"
#include "reprise/hf/tokenizer/byte_pair_encoder.h"
#include "reprise/hf/tokenizer/pre_tokenizer.h"
#include "reprise/hf/tokenizer/text_decoder.h"
#include "reprise/hf/tokenizer/text_normalizer.h"

namespace reprise {

struct BpeSpec {
  // Tokens and merges as the file has them: for units of bytes, in the alphabet of byte_level.h.
  std::vector<std::pair<std::string, int32_t>> vocabulary = {};
  std::vector<Merge> merges = {};
  WholePieces whole_pieces = WholePieces::kMerge;
  SymbolOptions symbols = {};
};

// Tokens before and after a text: BOS, mostly. Templates of text pairs are ignored.
struct TextTemplate {
  std::vector<int32_t> prefix = {};
  std::vector<int32_t> suffix = {};
};

struct TokenizerSpec {
  std::vector<AddedToken> added_tokens = {};
  std::vector<NormalizerStep> normalizer = {};
  std::vector<PreTokenizerStep> pre_tokenizer = {};
  BpeSpec model = {};
  TextTemplate text_template = {};
  std::vector<DecoderStep> decoder = {};
};

// Reads each member separately; Tokenizer::Create() checks that they fit together.
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const nlohmann::json& tokenizer,
                                                 const std::string& file = "tokenizer.json");

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TOKENIZER_JSON_H_
