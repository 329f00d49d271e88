#include "reprise/hf/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

// Unicode's White_Space.
bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// "\w" of Unicode's UTS 18, as in the regular expressions of Rust.
bool IsInWord(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Joiners, and letters in circles and squares.
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
             (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);
  }
}

// The offset of the last character. REQUIRES: `text` is not empty.
size_t LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return begin;
}

bool EndsInWord(std::string_view text) {
  return !text.empty() && IsInWord(FirstUtf8Unit(text.substr(LastCharacter(text))).code_point);
}

bool BeginsInWord(std::string_view text) {
  return !text.empty() && IsInWord(FirstUtf8Unit(text).code_point);
}

size_t WhiteSpaceAtBegin(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Unit unit = FirstUtf8Unit(text.substr(length));
    if (!IsWhiteSpace(unit.code_point)) break;
    length += unit.length;
  }
  return length;
}

size_t WhiteSpaceAtEnd(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    const size_t character = LastCharacter(text.substr(0, begin));
    if (!IsWhiteSpace(FirstUtf8Unit(text.substr(character)).code_point)) break;
    begin = character;
  }
  return text.size() - begin;
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens) {
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  std::set<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].content.empty()) {
      return absl::InvalidArgumentError("added tokens: a token has no content");
    }
    if (i > 0 && tokens[i].content == tokens[i - 1].content) {
      return absl::InvalidArgumentError(absl::StrCat("added tokens: the tokens ", tokens[i - 1].id,
                                                     " and ", tokens[i].id,
                                                     " have the same content"));
    }
    if (!ids.insert(tokens[i].id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("added tokens: two tokens have the id ", tokens[i].id));
    }
  }
  return AddedTokens(std::move(tokens));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {}

const AddedToken* AddedTokens::LongestPrefix(std::string_view text) const {
  // [begin, end) are the tokens whose first `depth` bytes are those of the text; they are adjacent,
  // the shortest first.
  auto begin = tokens_.begin();
  auto end = tokens_.end();
  const AddedToken* longest = nullptr;
  for (size_t depth = 0; begin != end && depth < text.size(); ++depth) {
    const auto byte_at_depth = [&](const AddedToken& token) {
      return depth < token.content.size() ? static_cast<uint8_t>(token.content[depth]) : -1;
    };
    const int byte = static_cast<uint8_t>(text[depth]);
    begin = std::partition_point(begin, end,
                                 [&](const AddedToken& t) { return byte_at_depth(t) < byte; });
    end = std::partition_point(begin, end,
                               [&](const AddedToken& t) { return byte_at_depth(t) == byte; });
    if (begin != end && begin->content.size() == depth + 1) longest = &*begin;
  }
  return longest;
}

std::vector<TextSegment> AddedTokens::Split(std::string_view text,
                                            SpecialTokens special_tokens) const {
  std::vector<TextSegment> segments;
  size_t done = 0;  // bytes that the segments cover
  for (size_t at = 0; at < text.size();) {
    const AddedToken* const token = LongestPrefix(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    // The search continues after the token itself, as in Hugging Face, also when white space after
    // it is taken.
    at = end;
    if (token->is_special && special_tokens == SpecialTokens::kPlainText) continue;
    if (token->is_single_word &&
        (EndsInWord(text.substr(0, begin)) || BeginsInWord(text.substr(end)))) {
      continue;
    }
    if (token->strips_left) {
      // Not the space that the token before it has already taken.
      begin = std::max(begin - WhiteSpaceAtEnd(text.substr(0, begin)), std::min(begin, done));
    }
    if (token->strips_right) end += WhiteSpaceAtBegin(text.substr(end));
    if (begin > done) segments.push_back({text.substr(done, begin - done), std::nullopt});
    segments.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), std::nullopt});
  return segments;
}

}  // namespace reprise
