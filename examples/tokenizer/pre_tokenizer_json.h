// Reads the "pre_tokenizer" of a tokenizer.json: none, Split, Digits, Metaspace, ByteLevel (as the
// last), or a Sequence of them.
//
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got. Thread
// safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_PRE_TOKENIZER_JSON_H_
#define EXAMPLES_TOKENIZER_PRE_TOKENIZER_JSON_H_

#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"
#include "examples/tokenizer/first_symbols.h"
#include "examples/tokenizer/pre_tokenizer.h"

namespace reprise {

struct PreTokenizerSpec {
  std::vector<PreTokenizerStep> steps = {};
  // With ByteLevel, tokens are sequences of bytes, written in the alphabet of byte_level.h.
  SymbolUnits units = SymbolUnits::kCharacters;
};

absl::StatusOr<PreTokenizerSpec> ReadPreTokenizer(const JsonFields& root);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_PRE_TOKENIZER_JSON_H_
