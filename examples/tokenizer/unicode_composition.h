// Unicode's normal form C: characters and their combining marks in the one order and the shortest
// form that stand for the same text, as "e" and U+0301 become "é".
//
//   ComposeCanonically("e\u0301") == "é"
//
// Source: Unicode Standard Annex 15. Characters that Hugging Face's library does not know, newer
// than Unicode 10, stay as and where they are, as there. Thread safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_UNICODE_COMPOSITION_H_
#define EXAMPLES_TOKENIZER_UNICODE_COMPOSITION_H_

#include <string>
#include <string_view>

namespace reprise {

// REQUIRES: `text` is UTF-8. Cost: linear, but for n combining marks on one character n log n.
std::string ComposeCanonically(std::string_view text);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_UNICODE_COMPOSITION_H_
