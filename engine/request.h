// The input and output of the engine: requests and token events.

#ifndef ENGINE_REQUEST_H_
#define ENGINE_REQUEST_H_

#include <cstdint>
#include <ostream>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "runner/sampling/sampling_params.h"

namespace reprise {

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  // The input of the encoder, for models that have one.
  std::vector<int32_t> encoder_tokens = {};
  int max_new_tokens = 128;  // at least one
  SamplingParams sampling = {};
  // A generated token among these ends the sequence, and is reported as its last token.
  std::vector<int32_t> stop_tokens = {};
  // Fed in place of sampled tokens, one after the other; generation ends with the last. For scoring
  // a given text.
  std::vector<int32_t> forced_tokens = {};
};

enum class FinishReason : int8_t {
  kNone,       // not finished
  kStop,       // a stop token
  kLength,     // max_new_tokens, the last forced token, or the longest sequence the runner serves
  kCacheFull,  // the sequence alone fills the whole cache
};

// "", "stop", "length", "cache_full".
std::string_view FinishReasonName(FinishReason reason);
inline std::ostream& operator<<(std::ostream& out, FinishReason reason) {
  return out << FinishReasonName(reason);
}

// A token that a sequence has got.
struct TokenEvent {
  SequenceId sequence = {};
  int32_t token = 0;
  int index = 0;  // 0 for the first generated token
  int row = 0;    // of the step: which row of its logits the token was chosen from
  FinishReason finish = FinishReason::kNone;

  friend bool operator==(const TokenEvent&, const TokenEvent&) = default;
};

}  // namespace reprise

#endif  // ENGINE_REQUEST_H_
