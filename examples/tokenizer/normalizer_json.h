// Reads the "normalizer" of a tokenizer.json: none, Prepend, Replace (of a String), NFC, or a
// Sequence of them.
//
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got. Thread
// safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_NORMALIZER_JSON_H_
#define EXAMPLES_TOKENIZER_NORMALIZER_JSON_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"
#include "examples/tokenizer/text_normalizer.h"

namespace reprise {

absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonFields& root);

// Reads the Replaces of one list, which decoders have as well: {"pattern": {"String": "a"},
// "content": "b"}. Refused, too, if texts can grow more than 64-fold by all of them: a hostile file
// would fill the memory.
class ReplaceReader {
 public:
  absl::StatusOr<ReplaceStep> Read(const JsonFields& part);

 private:
  size_t growth_ = 1;  // by those that were read, at most
};

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_NORMALIZER_JSON_H_
