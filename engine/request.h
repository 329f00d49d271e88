// The input and output of the engine: requests and token events.

#ifndef REPRISE_ENGINE_REQUEST_H_
#define REPRISE_ENGINE_REQUEST_H_

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
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/embedding_rows.h"

namespace reprise {

// How the tokens of a request are chosen: SamplingParams and LogitsParams as a user gives them. The
// default is greedy. CheckSampling() and CheckLogitsParams() name the ranges.
struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;        // 1: all
  float min_p = 0.0f;        // 0: all
  // Equal requests with equal seeds get equal texts. nullopt: the engine draws one, so that equal
  // requests differ.
  std::optional<uint64_t> seed = std::nullopt;
  // Served if the runner's LogitsOptions provide for them.
  float repetition_penalty = 1.0f;  // above 0; 1: none
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<LogitBias> biases = {};
};

// Says when a text has ended by what was generated so far, such as one of several strings: the
// engine knows no tokenizer. One sequence's state. Called on the thread that steps the engine. If it
// throws, its sequence ends with FinishReason::kError, without the token that it was given.
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

// Says which tokens may follow a text, such as a grammar does: one sequence's state. Called on the
// thread that steps the engine, between a step's tokens and the launch of the next: it should take
// less time than a step. If it throws, its sequence ends with FinishReason::kError, without the token
// that Accept() was given, or that Fill() was called for.
//
// A mask depends on the token before it. So with n steps in flight a sequence with a masker takes
// part in every n-th step, once its last token is known; other sequences take part in all, and no
// step waits.
class TokenMasker {
 public:
  virtual ~TokenMasker() = default;

  // Writes the mask of the tokens that may come next, behind those that were accepted: bit i of word
  // w is token 32 w + i, 1 = allowed, as in xgrammar. All words, MaskWords(vocab_size) of them. May
  // be called again for the same token. If it allows none, the sequence ends with kError.
  virtual void Fill(absl::Span<int32_t> mask) = 0;

  // `token` is the next generated token. Called once for each, in order. False: the text is complete
  // with it, and the sequence ends (FinishReason::kStop).
  virtual bool Accept(int32_t token) = 0;
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
  // At least one; or 0 together with num_prompt_log_probs: the prompt is scored, and the sequence
  // ends without a token (kLength).
  int max_new_tokens = 128;
  SamplingOptions sampling = {};
  // The user's own stages: bit i asks for LogitsOptions::stages[i] of the runner.
  LogitsStageSet logits_stages = 0;
  // Log-probabilities in the token's event: -1: none; 0: of the token; n: also the n most probable
  // tokens. Of the model's raw logits (runner/sampling/log_probs.h).
  int num_log_probs = -1;
  // The same for the tokens of the prompt behind the first, in the first event of each sequence. The
  // prompt is then computed, not found in the cache, in chunks of as many tokens as the runner gives
  // logits for (LogitsOptions::max_earlier_logits) and one more.
  int num_prompt_log_probs = -1;
  // A generated token among these ends the sequence, and is reported as its last token.
  std::vector<int32_t> stop_tokens = {};
  // Fed in place of sampled tokens; generation ends with the last. For scoring a given text behind a
  // prompt. Fed in chunks if the runner computes logits of earlier tokens
  // (LogitsOptions::max_earlier_logits), and one token per step otherwise. Stop tokens, matchers
  // and maskers are not asked.
  std::vector<int32_t> forced_tokens = {};
  // What the answer will probably be, such as a text that is to be changed in few places: drafts are the
  // tokens that follow in it what has been generated (engine/speculation/predicted_text.h), and the drafter's where
  // it has none. Read where the runner serves drafts (SpeculationOptions::max_drafts), also without a
  // proposer. The text is the same without it.
  std::vector<int32_t> predicted_tokens = {};
  // The most drafts of a row, where the engine speculates (SpeculationPolicy); the text is the same.
  // 0: none; -1: the engine's.
  int max_drafts = -1;
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
  // Makes the matcher of each sequence when the request is added. Empty, or null results: none. If it
  // throws, the request is not added.
  std::function<std::unique_ptr<StopMatcher>()> new_stop_matcher = {};
  // The same for maskers. Needs LogitsOptions::allowed_tokens.
  std::function<std::unique_ptr<TokenMasker>()> new_token_masker = {};
};

// What the device is told of a sequence when it joins. `seed`: the sequence's.
SamplingParams ToSamplingParams(const SamplingOptions& options, uint64_t seed);
// Views of the request; without a slot and without output. It asks for as many log-probabilities as
// the prompt or the generated tokens do.
LogitsRequest ToLogitsRequest(const Request& request);

enum class FinishReason : int8_t {
  kNone,       // not finished
  kStop,       // a stop token, a StopMatcher, or a TokenMasker
  kLength,     // max_new_tokens, the last forced token, or the longest sequence the runner serves
  kCacheFull,  // the sequence alone fills the whole cache
  kCancelled,  // by Cancel()
  kDeadline,   // its deadline has passed
  kError,      // a step failed, or a callback threw: TokenEvent::error says why
  kRefused,    // AsyncEngine: the request was not accepted; TokenEvent::error says why
};
inline constexpr int kNumFinishReasons = 8;

// "", "stop", "length", "cache_full", "cancelled", "deadline", "error", "refused".
std::string_view FinishReasonName(FinishReason reason);
inline std::ostream& operator<<(std::ostream& out, FinishReason reason) {
  return out << FinishReasonName(reason);
}

// A token's log-probability behind the text before it.
struct TokenLogProbs {
  struct Candidate {
    int32_t token = 0;
    float log_prob = 0.0f;

    friend bool operator==(const Candidate&, const Candidate&) = default;
  };

  int32_t token = 0;
  float log_prob = 0.0f;
  int32_t rank = 0;                 // 1 + the number of tokens that were more probable
  std::vector<Candidate> top = {};  // the most probable first, as many as the request asks for

  friend bool operator==(const TokenLogProbs&, const TokenLogProbs&) = default;
};

// A sequence has got a token, or has ended, or both. Each sequence has exactly one event with a
// finish, its last.
struct TokenEvent {
  SequenceId sequence = {};  // of the request, as Add() returned it
  int sample = 0;            // which of the request's sequences: 0 to num_sequences - 1
  // nullopt: it has ended without one (kCancelled, kDeadline, kError, kRefused).
  std::optional<int32_t> token = std::nullopt;
  int index = 0;  // 0 for the first generated token. Without a token, how many there are
  // Of the step: which row of its logits the token was chosen from; -1: one that is not known, of a
  // tree of drafts.
  int row = 0;
  // Index of the step's earlier logits (ModelRunner::earlier_logits()) that the token was chosen
  // from, instead of the row's logits: for forced tokens that were fed in a chunk, and for accepted
  // drafts. -1: none.
  int earlier = -1;
  int64_t step = -1;  // the step that computed the token (StepRunner::Launch()); -1: none
  // Of the token; nullopt unless Request::num_log_probs asks for it.
  std::optional<TokenLogProbs> log_probs = std::nullopt;
  // Entry i is that of token i + 1 of the prompt. Only in the first event of a sequence that has
  // computed its prompt, with Request::num_prompt_log_probs; else null. Its sequences share it.
  std::shared_ptr<const std::vector<TokenLogProbs>> prompt_log_probs = nullptr;
  // Tokens of the prompt that were not computed for this sequence, since the cache had their keys when
  // it was admitted, or another sequence of the request had. In its last event; else 0.
  int num_cached_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  absl::Status error = absl::OkStatus();  // why, where finish is kError or kRefused

  friend bool operator==(const TokenEvent&, const TokenEvent&) = default;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_REQUEST_H_
