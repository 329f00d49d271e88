// Unstable: any version may change this header (docs/embedding.md).
//
// UTF-8 functions for a tokenizer: refuse malformed text, cut a stream of bytes between characters,
// and show bytes that are not text.
//
//   if (std::optional<int64_t> at = FindInvalidUtf8(prompt)) return Refuse(*at);
//
// "Well-formed" is Unicode's table 3-7: no surrogates, nothing past U+10FFFF, no longer form than
// needed. Thread safety: pure functions.

#ifndef REPRISE_HF_UTF8_H_
#define REPRISE_HF_UTF8_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reprise {

enum class Utf8Kind {
  kCharacter,  // the bytes are a well-formed character
  kInvalid,    // no further byte can make them one: the longest prefix of a character, or one stray
               // byte
  kTruncated,  // the text ends within what may become one
};

struct Utf8Unit {
  Utf8Kind kind = Utf8Kind::kInvalid;
  // Bytes of the unit, 1..4.
  int length = 0;
  // Of a kCharacter; 0 for the others.
  char32_t code_point = 0;
};

// The unit at the front of `text`. REQUIRES: text is not empty.
Utf8Unit FirstUtf8Unit(std::string_view text);

// Offset of the first byte that does not belong to a well-formed character; nullopt if all do.
std::optional<int64_t> FindInvalidUtf8(std::string_view text);

// `text` with every unit that is not a character replaced by U+FFFD: the substitution of maximal
// subparts that Unicode recommends and that Rust's from_utf8_lossy, and with it Hugging Face's
// decoders, perform.
std::string ReplaceInvalidUtf8(std::string_view text);

// Number of bytes of `text` before the incomplete character at its end: text.size() minus 0 to 3.
// The bytes that follow cannot change ReplaceInvalidUtf8() of that prefix.
int64_t SettledUtf8Prefix(std::string_view text);

// Appends the character to `text`. REQUIRES: a code point up to U+10FFFF that is not a surrogate.
void AppendUtf8(char32_t code_point, std::string& text);

}  // namespace reprise

#endif  // REPRISE_HF_UTF8_H_
