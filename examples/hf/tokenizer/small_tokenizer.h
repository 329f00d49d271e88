// The tokenizer.json of a small tokenizer, for tests to start from: all 256 bytes (ids 0..255, in
// the order of the bytes), the merges "he", "ll", "hell", "hello", "Ġw" (256..260), and the special
// tokens "<s>" (261, which the template puts first) and "</s>" (262).

#ifndef REPRISE_HF_TOKENIZER_SMALL_TOKENIZER_H_
#define REPRISE_HF_TOKENIZER_SMALL_TOKENIZER_H_

#include "nlohmann/json_fwd.hpp"

namespace reprise {

nlohmann::json SmallTokenizerJson();

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_SMALL_TOKENIZER_H_
