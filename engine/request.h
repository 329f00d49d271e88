// The input and output of the engine: requests and token events.

#ifndef ENGINE_REQUEST_H_
#define ENGINE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "runner/sampling/sampling_params.h"
#include "runner/slots/embedding_rows.h"

namespace reprise {

// How the tokens of a request are chosen: SamplingParams as a user gives them. The default is
// greedy. CheckSampling() names the ranges.
struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;        // 1: all
  float min_p = 0.0f;        // 0: all
  // Equal requests with equal seeds get equal texts. nullopt: the engine draws one, so that equal
  // requests differ.
  std::optional<uint64_t> seed = std::nullopt;
};

// What the device is told of one sequence, whose seed is `seed`.
SamplingParams ToSamplingParams(const SamplingOptions& options, uint64_t seed);

// Says when a text has ended by what was generated so far, such as one of several strings: the
// engine knows no tokenizer. One sequence's state. Called on the thread that steps the engine.
class StopMatcher {
 public:
  virtual ~StopMatcher() = default;

  // `token` is the next generated token. Called once for each, in order. True: the sequence ends
  // with it (FinishReason::kStop).
  virtual bool Ends(int32_t token) = 0;
};

// Embeddings of some of a prompt's tokens in place of those of their ids: of an image, a piece of
// audio, or any other input that another model has encoded.
struct RequestEmbeddings {
  int first_token = 0;      // of the prompt
  EmbeddingRows rows = {};  // one a token, of the model's dtype
  // Released when the request's sequences have ended and no step reads the rows any more: what
  // keeps their memory. Null: the caller keeps it as long, and unchanged.
  std::shared_ptr<const void> owner = {};
  // Names the content by any bytes, such as a digest of the image and of how it was encoded: equal
  // ones share cached keys, others never do. Empty: the bytes of rows in host memory do; rows on a
  // GPU are then shared by the sequences of this request only.
  std::string content = {};
};

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  // For models that take embeddings: ascending by first_token, without overlaps. The prompt's ids
  // at their places may be any in the vocabulary.
  std::vector<RequestEmbeddings> embeddings = {};
  // For models whose positions have several dimensions (M-RoPE): [num_position_dims, prompt]. What
  // follows the prompt continues in all dimensions one beyond the largest. Empty: every token has
  // its index.
  std::vector<int32_t> positions = {};
  // The input of the encoder, for models that have one.
  std::vector<int32_t> encoder_tokens = {};
  int max_new_tokens = 128;  // at least one
  SamplingOptions sampling = {};
  // A generated token among these ends the sequence, and is reported as its last token.
  std::vector<int32_t> stop_tokens = {};
  // Fed in place of sampled tokens, one after the other; generation ends with the last. For scoring
  // a given text.
  std::vector<int32_t> forced_tokens = {};
  // Sequences to generate from the prompt, which is computed once for all of them. 1 to the rows of
  // a step. With a seed, sequence i has seed + i.
  int num_sequences = 1;
  // Higher priorities are admitted first, and give up their blocks last.
  int priority = 0;
  // A sequence that has not finished by then ends with FinishReason::kDeadline.
  absl::Time deadline = absl::InfiniteFuture();
  // Requests with different salts never share cached keys: for tenants that must not learn of each
  // other's prompts by the time that an answer takes.
  std::string prefix_salt = {};
  // Makes the matcher of each sequence when the request is added. Empty, or null results: none.
  std::function<std::unique_ptr<StopMatcher>()> new_stop_matcher = {};
};

enum class FinishReason : int8_t {
  kNone,       // not finished
  kStop,       // a stop token, or a StopMatcher
  kLength,     // max_new_tokens, the last forced token, or the longest sequence the runner serves
  kCacheFull,  // the sequence alone fills the whole cache
  kCancelled,  // by Cancel()
  kDeadline,   // its deadline has passed
  kError,      // a step failed: TokenEvent::error says why
  kRefused,    // AsyncEngine: the request was not accepted; TokenEvent::error says why
};
inline constexpr int kNumFinishReasons = 8;

// "", "stop", "length", "cache_full", "cancelled", "deadline", "error", "refused".
std::string_view FinishReasonName(FinishReason reason);
inline std::ostream& operator<<(std::ostream& out, FinishReason reason) {
  return out << FinishReasonName(reason);
}

// A sequence has got a token, or has ended, or both. Each sequence has exactly one event with a
// finish, its last.
struct TokenEvent {
  SequenceId sequence = {};  // of the request, as Add() returned it
  int sample = 0;            // which of the request's sequences: 0 to num_sequences - 1
  // nullopt: it has ended without one (kCancelled, kDeadline, kError, kRefused).
  std::optional<int32_t> token = std::nullopt;
  int index = 0;  // 0 for the first generated token. Without a token, how many there are
  int row = 0;    // of the step: which row of its logits the token was chosen from
  FinishReason finish = FinishReason::kNone;
  absl::Status error = absl::OkStatus();  // why, where finish is kError or kRefused

  friend bool operator==(const TokenEvent&, const TokenEvent&) = default;
};

}  // namespace reprise

#endif  // ENGINE_REQUEST_H_
