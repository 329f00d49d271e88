// The ids that tokens may have.

#ifndef EXAMPLES_TOKENIZER_TOKEN_IDS_H_
#define EXAMPLES_TOKENIZER_TOKEN_IDS_H_

#include <cstdint>

#include "examples/llama/json_fields.h"

namespace reprise {

// Ids are at most this: four million, so that tables by id stay small.
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;

inline constexpr IntRange kTokenIdRange = {.min = 0, .max = kMaxTokenId};

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_TOKEN_IDS_H_
