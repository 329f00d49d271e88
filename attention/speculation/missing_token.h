// Negative values in arrays of token ids, for rows without a chosen token.

#ifndef REPRISE_ATTENTION_SPECULATION_MISSING_TOKEN_H_
#define REPRISE_ATTENTION_SPECULATION_MISSING_TOKEN_H_

#include <cstdint>

namespace reprise {

// The row does not sample, for example because it is padding.
inline constexpr int32_t kNotSampled = -1;
// No logit of the row is above -inf: each is NaN or masked. The slot's last_token is then 0, a
// valid id for a step that may already be in flight. The engine ends this sequence only.
inline constexpr int32_t kNanRow = -2;

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_MISSING_TOKEN_H_
