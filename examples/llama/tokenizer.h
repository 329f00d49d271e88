// Text to tokens and back, as Hugging Face's tokenizers do it, for the tokenizers that
// tokenizer_json.h describes.
//
//   REPRISE_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(folder + "/tokenizer.json"));
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode("/dev/null"));
//   tokens == {0, 16, 1208, 87, 3158};  // with jargon-llama; 0 is BOS
//   tokenizer.Decode(tokens, SpecialTokenText::kSkip) == "/dev/null";
//
// To decode while tokens are made, see streaming_decoder.h. Thread safety: as any const object.

#ifndef EXAMPLES_LLAMA_TOKENIZER_H_
#define EXAMPLES_LLAMA_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/llama/added_tokens.h"
#include "examples/llama/byte_pair_encoder.h"
#include "examples/llama/split_pattern.h"
#include "examples/llama/tokenizer_json.h"

namespace reprise {

struct EncodeOptions {
  // Puts the tokens of the template around the text: BOS, for most models.
  bool adds_template = true;
  // kPlainText for text from outside that must not be able to write special tokens.
  SpecialTokens special_tokens = SpecialTokens::kMatch;
};

enum class SpecialTokenText { kKeep, kSkip };

class Tokenizer {
 public:
  // Errors: those of MappedFile::Open(), ParseJson() and ParseTokenizerJson(), or as Create(),
  // naming `path`.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);

  // Errors: InvalidArgument if the members of `spec` do not fit together:
  //   two tokens have the same id, or an added token another id than in the vocabulary
  //   a merge is not of tokens in the alphabet of byte_level.h
  //   the split pattern is not supported
  //   the template names a token that does not exist
  static absl::StatusOr<Tokenizer> Create(const TokenizerSpec& spec);

  // Errors: InvalidArgument, with the offset, if `text` is not UTF-8; if it has a byte for which
  // the vocabulary has no token; if the pattern of a hostile file takes too many steps.
  // Cost: linear in the text, but for single words of many thousand bytes: n log n of those.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Always UTF-8: bytes that are none become U+FFFD. Ids without a token (models may have more rows
  // than their tokenizer has tokens) add nothing.
  std::string Decode(absl::Span<const int32_t> tokens, SpecialTokenText special_tokens) const;

  // The bytes that the token adds to a text, not always whole characters; nothing for an id without
  // a token.
  std::optional<std::string_view> TokenBytes(int32_t token) const;

  bool IsSpecial(int32_t token) const;

  // The token with this content, added or not; "<|eot_id|>", "Ġthe".
  std::optional<int32_t> FindToken(std::string_view content) const;

  // One more than the greatest id.
  int vocab_size() const { return static_cast<int>(tokens_.size()); }

 private:
  struct Token {
    std::string content;  // as in the file
    std::string bytes;
    bool is_special = false;
  };
  // By id; nothing where an id is not used.
  using TokenTable = std::vector<std::optional<Token>>;
  using Ids = absl::flat_hash_map<std::string, int32_t>;

  static absl::StatusOr<TokenTable> MakeTable(const TokenizerSpec& spec);

  Tokenizer(TokenTable tokens, AddedTokens added_tokens, SplitPattern pattern,
            BytePairEncoder encoder, std::vector<int32_t> prefix, std::vector<int32_t> suffix);

  TokenTable tokens_;
  Ids ids_;  // by content
  AddedTokens added_tokens_;
  SplitPattern pattern_;
  BytePairEncoder encoder_;
  std::vector<int32_t> prefix_;
  std::vector<int32_t> suffix_;
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_TOKENIZER_H_
