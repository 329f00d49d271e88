// Tables of the Unicode character database that normal form C needs; see unicode_composition.h.
// Made by make_composition_tables.py. Hangul is not among them: it follows from arithmetic.

#ifndef EXAMPLES_TOKENIZER_COMPOSITION_TABLES_H_
#define EXAMPLES_TOKENIZER_COMPOSITION_TABLES_H_

#include <cstdint>

namespace reprise {

struct Decomposition {
  char32_t character;
  char32_t first;   // may itself decompose
  char32_t second;  // 0: the character is another way to write the first
};

// Characters from `first` to `last` whose canonical combining class is not 0.
struct CombiningRange {
  char32_t first;
  char32_t last;
  uint8_t combining_class;
};

// All three ascend by character. Of kPairs the two parts compose to the character again; kOneWay
// are the others.
extern const Decomposition kPairs[];
extern const int kNumPairs;
extern const Decomposition kOneWay[];
extern const int kNumOneWay;
extern const CombiningRange kCombining[];
extern const int kNumCombining;

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_COMPOSITION_TABLES_H_
