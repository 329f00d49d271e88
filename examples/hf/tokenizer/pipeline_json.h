// Unstable: any version may change this header (docs/embedding.md).
//
// Reads the parts of a tokenizer.json that change and cut texts:
//
//   normalizer      none, Prepend, Replace (of a String), NFC
//   pre_tokenizer   none, Split, Digits, Metaspace, ByteLevel (as the last)
//   decoder         ByteLevel; or Replace (of a String), ByteFallback, Metaspace, Strip (at the
//   start)
//                   and Fuse, after which only Strip may come
//
// each alone or as a Sequence. Errors: InvalidArgument, naming the file, the member, what was
// expected and what was got. Thread safety: pure functions.

#ifndef REPRISE_HF_TOKENIZER_PIPELINE_JSON_H_
#define REPRISE_HF_TOKENIZER_PIPELINE_JSON_H_

#include <vector>

#include "absl/status/statusor.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/tokenizer/first_symbols.h"
#include "reprise/hf/tokenizer/pre_tokenizer.h"
#include "reprise/hf/tokenizer/text_decoder.h"
#include "reprise/hf/tokenizer/text_normalizer.h"

namespace reprise {

absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonFields& root);

struct PreTokenizerSpec {
  std::vector<PreTokenizerStep> steps = {};
  // With ByteLevel, tokens are sequences of bytes, written in the alphabet of byte_level.h.
  SymbolUnits units = SymbolUnits::kCharacters;
};

absl::StatusOr<PreTokenizerSpec> ReadPreTokenizer(const JsonFields& root);

// `units`: those of the pre-tokenizer; units of bytes require the ByteLevel decoder.
absl::StatusOr<std::vector<DecoderStep>> ReadDecoder(const JsonFields& root, SymbolUnits units);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_PIPELINE_JSON_H_
