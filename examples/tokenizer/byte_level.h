// The alphabet in which byte-level tokenizers write bytes as text: each of the 256 bytes is one
// printable character. Printable Latin-1 bytes stand for themselves, the others for U+0100 and on,
// so a space is "Ġ" and a new line "Ċ" (first used by GPT-2).
//
//   BytesFromLevel("Ġdon't") == " don't"
//
// Thread safety: pure functions.

#ifndef EXAMPLES_TOKENIZER_BYTE_LEVEL_H_
#define EXAMPLES_TOKENIZER_BYTE_LEVEL_H_

#include <optional>
#include <string>
#include <string_view>

namespace reprise {

// The bytes that `text` writes; nothing if it has a character outside the alphabet. REQUIRES:
// `text` is UTF-8.
std::optional<std::string> BytesFromLevel(std::string_view text);

// `bytes` written in the alphabet; any bytes will do.
std::string LevelFromBytes(std::string_view bytes);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_BYTE_LEVEL_H_
