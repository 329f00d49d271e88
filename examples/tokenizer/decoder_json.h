// Reads the "decoder" of a tokenizer.json: ByteLevel; or Replace (of a String), ByteFallback,
// Metaspace, Strip (at the start) and Fuse, after which only Strip may come; or a Sequence of them.
//
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got. Thread
// safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_DECODER_JSON_H_
#define EXAMPLES_TOKENIZER_DECODER_JSON_H_

#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"
#include "examples/tokenizer/first_symbols.h"
#include "examples/tokenizer/text_decoder.h"

namespace reprise {

// `units`: those of the pre-tokenizer; what has become bytes comes back by ByteLevel alone.
absl::StatusOr<std::vector<DecoderStep>> ReadDecoder(const JsonFields& root, SymbolUnits units);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_DECODER_JSON_H_
