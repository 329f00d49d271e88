// Reads the "model" of a tokenizer.json: BPE without dropout and affixes.
//
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got. Thread
// safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_BPE_JSON_H_
#define EXAMPLES_TOKENIZER_BPE_JSON_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"
#include "examples/tokenizer/byte_pair_encoder.h"

namespace reprise {

struct BpeSpec {
  // Tokens and merges as the file has them: for units of bytes, in the alphabet of byte_level.h.
  std::vector<std::pair<std::string, int32_t>> vocabulary = {};
  std::vector<Merge> merges = {};
  WholePieces whole_pieces = WholePieces::kMerge;
  SymbolOptions symbols = {};
};

// `units`: those of the pre-tokenizer. Merges may be "a b" or ["a", "b"].
absl::StatusOr<BpeSpec> ReadBpe(const JsonFields& root, SymbolUnits units);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_BPE_JSON_H_
