// Unstable: any version may change this header (docs/embedding.md).
//
// Text to tokens and back, as Hugging Face's tokenizers do it, for the tokenizers that
// tokenizer_json.h describes.
//
//   REPRISE_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::LoadFolder(folder));
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode("/dev/null"));
//   tokens == {0, 16, 1208, 87, 3158};  // with jargon-llama; 0 is BOS
//   tokenizer.Decode(tokens, SpecialTokenText::kSkip) == "/dev/null";
//
// Streaming, without ever printing a part of a character:
//
//   StreamingDecoder decoder(tokenizer, SpecialTokenText::kSkip);
//   decoder.Begin(prompt);
//   for (...) std::cout << decoder.Push(token) << std::flush;
//   std::cout << decoder.Finish();
//
// Thread safety: a tokenizer as any const object; a decoder none.

#ifndef REPRISE_HF_TOKENIZER_TOKENIZER_H_
#define REPRISE_HF_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/tokenizer/added_tokens.h"
#include "reprise/hf/tokenizer/byte_pair_encoder.h"
#include "reprise/hf/tokenizer/pre_tokenizer.h"
#include "reprise/hf/tokenizer/text_decoder.h"
#include "reprise/hf/tokenizer/text_normalizer.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"

namespace reprise {

struct EncodeOptions {
  // Puts the tokens of the template around the text: BOS, for most models.
  bool adds_template = true;
  // kPlainText for untrusted text that must not be able to write special tokens.
  SpecialTokens special_tokens = SpecialTokens::kMatch;
};

enum class SpecialTokenText { kKeep, kSkip };

class Tokenizer {
 public:
  // Reads a tokenizer.json. Errors: those of MappedFile::Open(), ParseJson() and
  // ParseTokenizerJson(), or as Create(), naming `path`.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);

  // Reads <folder>/tokenizer.json and, if it exists, <folder>/tokenizer_config.json
  // (tokenizer_config.h). Errors: those of Load() and of ApplyTokenizerConfig(), naming the file.
  static absl::StatusOr<Tokenizer> LoadFolder(const std::string& folder);

  // Errors: InvalidArgument if the members of `spec` do not fit together:
  //   two tokens have the same id, or an added token another id than in the vocabulary
  //   a merge is not of tokens of the vocabulary, or not in the alphabet of byte_level.h
  //   a pattern is not supported
  //   the template names a token that does not exist
  static absl::StatusOr<Tokenizer> Create(const TokenizerSpec& spec);

  // Errors: InvalidArgument, with the offset, if `text` is not UTF-8; if it has a character for
  // which the vocabulary has no token; if the pattern of a hostile file takes too many steps. Cost:
  // linear in the text, but for pieces of many thousand bytes: n log n of those. If no step splits
  // a text (Llama 2, Gemma), all of it is one piece.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Always UTF-8: invalid bytes become U+FFFD. If a run of the tokens <0x00> to <0xFF> is not all
  // UTF-8, each byte of the run does, as in Hugging Face's library; StreamingDecoder keeps the whole
  // characters of such a run. Ids without a token (models may have more rows than their tokenizer
  // has tokens) add nothing.
  std::string Decode(absl::Span<const int32_t> tokens, SpecialTokenText special_tokens) const;

  // Returns a decoder for the contents of tokens that come one by one.
  TextDecoder MakeDecoder() const { return TextDecoder(decoder_); }

  // The token as in the file: "Ġthe", "▁the", "<0x0A>"; nullopt for an id without a token.
  std::optional<std::string_view> TokenContent(int32_t token) const;

  // Whether tokenizer.json marks the token as special (BOS, EOS and the like).
  bool IsSpecial(int32_t token) const;

  // The token with this content, added or not; "<|eot_id|>", "Ġthe".
  std::optional<int32_t> FindToken(std::string_view content) const;

  // The tokens that EncodeOptions::adds_template puts around a text.
  const TextTemplate& text_template() const { return text_template_; }

  // One more than the greatest id.
  int vocab_size() const { return static_cast<int>(tokens_.size()); }

 private:
  struct Token {
    std::string content;
    bool is_special = false;
  };
  // By id; nullopt if an id is not used.
  using TokenTable = std::vector<std::optional<Token>>;
  using Ids = absl::flat_hash_map<std::string, int32_t>;

  // Create(), whose errors name `path`.
  static absl::StatusOr<Tokenizer> CreateNaming(const std::string& path, const TokenizerSpec& spec);

  static absl::StatusOr<TokenTable> MakeTable(const TokenizerSpec& spec);

  Tokenizer(TokenTable tokens, AddedTokens added_tokens, AddedTokens normalized_tokens,
            PreTokenizer pre_tokenizer, BytePairEncoder encoder, const TokenizerSpec& spec);

  // Encodes a text without added tokens, except those that are searched after normalization.
  absl::Status EncodeSegment(std::string_view text, PreTokenizer::Place place,
                             SpecialTokens special_tokens, std::vector<int32_t>& tokens) const;

  TokenTable tokens_;
  Ids ids_;  // by content
  AddedTokens added_tokens_;
  AddedTokens normalized_tokens_;  // searched in normalized text
  std::vector<NormalizerStep> normalizer_;
  PreTokenizer pre_tokenizer_;
  BytePairEncoder encoder_;
  TextTemplate text_template_;
  std::vector<DecoderStep> decoder_;
};

// Makes text of tokens that come one by one. The joined results equal Decode() of all tokens if each
// run of the tokens <0x00> to <0xFF> is UTF-8. In other runs, each byte outside of whole characters
// becomes one U+FFFD. A copy continues on its own.
class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens);

  // Takes the tokens that precede the text, such as a prompt. The results of Push() and Finish()
  // then follow the text of `tokens`: a space between the two is kept. A character that `tokens`
  // begins and later tokens complete is returned whole. If later tokens do not complete it, its
  // U+FFFD belongs to the text of `tokens`. REQUIRES: no token has been pushed.
  void Begin(absl::Span<const int32_t> tokens);

  // Returns the text that one more token makes certain, often empty: whole characters, and U+FFFD
  // for bytes that cannot become one. The beginning of a character is held back. Always UTF-8.
  std::string Push(int32_t token);

  // Returns the pending text: U+FFFD for an unfinished character. Afterwards the decoder is as new.
  std::string Finish();

 private:
  // Removes begun_ from the first text.
  std::string WithoutBegun(std::string text);

  const Tokenizer* tokenizer_;
  SpecialTokenText special_tokens_;
  TextDecoder decoder_;
  std::string begun_;  // U+FFFD that Begin() counted as text of its tokens; empty after a text
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TOKENIZER_H_
