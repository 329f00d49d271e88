// Unstable: any version may change this header (docs/embedding.md).
//
// The alphabet in which byte-level tokenizers write bytes as text: each of the 256 bytes is one
// printable character. Printable Latin-1 bytes map to themselves, the others to U+0100 and up, so a
// space is "Ġ" and a new line "Ċ" (first used by GPT-2).
//
//   BytesFromLevel("Ġdon't") == " don't"
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_TOKENIZER_BYTE_LEVEL_H_
#define REPRISE_HF_TOKENIZER_BYTE_LEVEL_H_

#include <optional>
#include <string>
#include <string_view>

namespace reprise {

// The bytes that `text` encodes; nullopt if it has a character outside the alphabet. REQUIRES:
// `text` is UTF-8.
std::optional<std::string> BytesFromLevel(std::string_view text);

// `bytes` written in the alphabet; all bytes are allowed.
std::string LevelFromBytes(std::string_view bytes);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_BYTE_LEVEL_H_
