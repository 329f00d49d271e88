// What a tokenizer.json of Hugging Face says, if it describes a tokenizer of the kind that is
// implemented: byte-level BPE whose text is cut up by a regular expression, as Llama 3 and its
// descendants have.
//
//   normalizer      none
//   pre_tokenizer   Sequence of Split (a Regex, isolated) and ByteLevel (no prefix space, no regex
//                   of its own)
//   model           BPE without dropout, unknown token, affixes and byte fallback; merges as "a b"
//                   or as ["a", "b"]
//   post_processor  none, ByteLevel, TemplateProcessing or RobertaProcessing, or a Sequence of
//                   ByteLevel and one of them
//   decoder         ByteLevel
//
// Everything else would give other tokens, so it is refused by name, as is a member that is not
// known.
// Thread safety: pure functions.

#ifndef EXAMPLES_LLAMA_TOKENIZER_JSON_H_
#define EXAMPLES_LLAMA_TOKENIZER_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/added_tokens.h"
#include "examples/llama/byte_pair_encoder.h"
#include "nlohmann/json.hpp"

namespace reprise {

struct TokenizerSpec {
  // Tokens and merges as the file has them, in the alphabet of byte_level.h.
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<Merge> merges;
  WholePieces whole_pieces = WholePieces::kMerge;
  std::string split_pattern;
  std::vector<AddedToken> added_tokens;
  // What the template puts before and after the tokens of a single text: BOS, mostly.
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// Ids are at most this: four million, so that tables by id stay small.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

// Reads the members, each for itself; whether they fit together is for Tokenizer::Create() to say.
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const nlohmann::json& tokenizer,
                                                 const std::string& file = "tokenizer.json");

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_TOKENIZER_JSON_H_
