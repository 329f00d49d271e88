// Unstable: any version may change this header (docs/embedding.md).
//
// Tokens that are found in a text literally, before it is cut into pieces, such as
// "<|begin_of_text|>". A tokenizer has two sets of them: one for unchanged texts, one for the
// normalized rest.
//
//   REPRISE_ASSIGN_OR_RETURN(const AddedTokens added,
//                            AddedTokens::Create({{.id = 0, .content = "<s>"}}));
//   added.Split("a<s>b", SpecialTokens::kMatch);  // {"a"}, {"<s>", 0}, {"b"}
//
// Thread safety: as any const object.

#ifndef REPRISE_HF_TOKENIZER_ADDED_TOKENS_H_
#define REPRISE_HF_TOKENIZER_ADDED_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

// The members of "added_tokens" of a tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  // Whether the token is found only between characters that are in no word: not in "a<t>", "<t>1"
  // or "_<t>". Letters, marks, decimal digits and connecting punctuation are in words.
  bool is_single_word = false;
  // White space before or after it belongs to the token.
  bool strips_left = false;
  bool strips_right = false;
  // Searched after the others, in the normalized rest of the text, and in normalized form.
  bool is_normalized = false;
  // Left out of decoded text for people; may be forbidden in untrusted texts.
  bool is_special = false;
};

// Whether special tokens are found in a text, or are treated as plain characters: an untrusted
// prompt should not be able to end a turn. Other added tokens are always found.
enum class SpecialTokens { kMatch, kPlainText };

// A part of a text: one token, or plain text.
struct TextSegment {
  std::string_view text;
  std::optional<int32_t> token;

  friend bool operator==(const TextSegment&, const TextSegment&) = default;
};

class AddedTokens {
 public:
  // Errors: InvalidArgument if a content is empty, or if two tokens have the same content or id.
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedToken> tokens);

  // The segments in order, without empty ones. Tokens are found from left to right, the longest of
  // those that begin at the same place, as Hugging Face finds them. REQUIRES: `text` is UTF-8.
  // Cost: O(length of the text x length of the longest token), in practice linear.
  std::vector<TextSegment> Split(std::string_view text, SpecialTokens special_tokens) const;

  // By content.
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // The longest token that `text` begins with; null if there is no such token.
  const AddedToken* LongestPrefix(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // by content
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_ADDED_TOKENS_H_
