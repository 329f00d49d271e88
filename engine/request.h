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

// How the tokens of a request are sampled: the user's form of SamplingParams and LogitsParams. The
// default is greedy. CheckSampling() and CheckLogitsParams() check the ranges.
struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;        // 1: all
  float min_p = 0.0f;        // 0: all
  // Equal requests with equal seeds draw the same random numbers. nullopt: the engine draws a seed,
  // so that the outputs of equal requests differ.
  std::optional<uint64_t> seed = std::nullopt;
  // The following require support by the runner's LogitsOptions.
  float repetition_penalty = 1.0f;  // above 0; 1: none
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<LogitBias> biases = {};
};

// Ends a sequence depending on its generated tokens, for example at one of several strings: the
// engine has no tokenizer. Holds the state of one sequence. Called on the thread that steps the
// engine. If a call throws, its sequence ends with FinishReason::kError, without the token that was
// passed.
class StopMatcher {
 public:
  virtual ~StopMatcher() = default;

  // Processes the next generated token. Called once per token, in order. Returns true if the
  // sequence ends with this token (FinishReason::kStop).
  virtual bool Ends(int32_t token) = 0;
};

// Embeddings that replace the token embeddings of a range of the prompt. They come from an image,
// audio or any other input that another model has encoded.
struct RequestEmbeddings {
  int first_token = 0;      // index in the prompt
  EmbeddingRows rows = {};  // one per token, in the model's dtype
  // Owns the memory of `rows`. Released when the request's sequences have ended and no step reads
  // the rows any more. Null: until then, the caller keeps the memory alive and unchanged.
  std::shared_ptr<const void> owner = {};
  // Identifies the content by any bytes, such as a digest of the image and of how it was encoded.
  // Prompts with equal `content` share cached keys; prompts with different `content` never do.
  // Empty: rows in host memory are identified by their bytes; rows on a GPU are shared only by the
  // sequences of this request.
  std::string content = {};
};

// Restricts which tokens may be generated next, for example by a grammar. Holds the state of one
// sequence. Called on the thread that steps the engine, between the tokens of a step and the launch
// of the next step, and should take less time than a step. If a call throws, its sequence ends with
// FinishReason::kError, without the token that was passed to Accept() or that Fill() was called
// for.
//
// A mask depends on the previous token. With n steps in flight, a sequence with a masker therefore
// takes part in every n-th step, once its last token is known. Other sequences take part in all
// steps, and no step waits.
class TokenMasker {
 public:
  virtual ~TokenMasker() = default;

  // Writes the mask of the tokens that may follow the accepted tokens. Bit i of word w is token 32
  // w + i, 1 = allowed, as in xgrammar. Writes all MaskWords(vocab_size) words. May be called again
  // for the same position. If the mask allows no token, the sequence ends with kError.
  virtual void Fill(absl::Span<int32_t> mask) = 0;

  // Processes the next generated token. Called once per token, in order. Returns false if the
  // output is complete with this token; the sequence then ends (FinishReason::kStop).
  virtual bool Accept(int32_t token) = 0;
};

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  // For models that take embeddings: ascending by first_token, without overlaps. The prompt may
  // have any ids of the vocabulary for these tokens.
  std::vector<RequestEmbeddings> embeddings = {};
  // For models whose positions have several dimensions (M-RoPE): [num_position_dims, prompt
  // length]. Tokens after the prompt continue in all dimensions from the largest position + 1.
  // Empty: the position of every token is its index.
  std::vector<int32_t> positions = {};
  // The input of the encoder, for models that have one.
  std::vector<int32_t> encoder_tokens = {};
  // At least 1. May be 0 with num_prompt_log_probs: the prompt is then scored, and the sequence
  // ends without a token (kLength).
  int max_new_tokens = 128;
  SamplingOptions sampling = {};
  // User-defined stages: bit i enables LogitsOptions::stages[i] of the runner.
  LogitsStageSet logits_stages = 0;
  // Log-probabilities in each token's event. -1: none. 0: only the token. n: also the n most likely
  // tokens. Computed from the model's raw logits (runner/sampling/log_probs.h).
  int num_log_probs = -1;
  // The same for the tokens of the prompt, except the first, in the first event of each sequence.
  // The prompt is then computed, not taken from the cache, in chunks of at most
  // LogitsOptions::max_earlier_logits + 1 tokens.
  int num_prompt_log_probs = -1;
  // If one of these tokens is generated, the sequence ends with it. The token is reported.
  std::vector<int32_t> stop_tokens = {};
  // Tokens to feed instead of sampled tokens; the sequence ends with the last one. For scoring a
  // given continuation of the prompt. Fed in chunks if the runner computes logits of earlier tokens
  // (LogitsOptions::max_earlier_logits), and one token per step otherwise. Stop tokens, matchers
  // and maskers have no effect.
  std::vector<int32_t> forced_tokens = {};
  // The predicted output, for example a text that is to be changed in a few places. Drafts are the
  // tokens that follow the generated text in the prediction (engine/speculation/predicted_text.h),
  // or the drafter's proposals if the prediction has none. Used if the runner supports drafts
  // (SpeculationOptions::max_drafts), even without a proposer. Does not change the output, except
  // with DraftAcceptance::kRejection.
  std::vector<int32_t> predicted_tokens = {};
  // Maximum number of drafts per row, if the engine speculates (SpeculationPolicy). 0: none. -1:
  // the limit of the engine. Does not change the output, except with DraftAcceptance::kRejection.
  int max_drafts = -1;
  // Number of sequences to generate from the prompt, which is computed once for all of them. At
  // least 1, and at most the maximum number of rows per step. With a seed, sequence i uses seed +
  // i.
  int num_sequences = 1;
  // Requests with higher priority are admitted first and preempted last.
  int priority = 0;
  // A sequence that is unfinished at this time ends with FinishReason::kDeadline.
  absl::Time deadline = absl::InfiniteFuture();
  // Requests with different salts never share cached keys. Use one salt per tenant if response
  // times must not reveal the prompts of other tenants.
  std::string prefix_salt = {};
  // Called once per sequence when the request is added, to make its matcher. Empty, or returns
  // null: no matcher. If a call throws, the request is not added.
  std::function<std::unique_ptr<StopMatcher>()> new_stop_matcher = {};
  // The same for maskers. Requires LogitsOptions::allowed_tokens.
  std::function<std::unique_ptr<TokenMasker>()> new_token_masker = {};
};

// Returns the parameters that the device gets when a sequence joins. `seed`: seed of the sequence.
SamplingParams ToSamplingParams(const SamplingOptions& options, uint64_t seed);
// Returns views of `request`, without a slot and without output. The number of log-probabilities of
// known tokens is the larger of the numbers for the prompt and for forced tokens.
LogitsRequest ToLogitsRequest(const Request& request);

enum class FinishReason : int8_t {
  kNone,       // not finished
  kStop,       // a stop token, a StopMatcher, or a TokenMasker
  kLength,     // max_new_tokens, the last forced token, or the runner's maximum length or position
  kCacheFull,  // the sequence fills the whole cache
  kCancelled,  // by Cancel()
  kDeadline,   // its deadline has passed
  kError,      // a step, a row or a callback failed; the reason is TokenEvent::error
  kRefused,    // AsyncEngine: the request was not accepted; the reason is TokenEvent::error
};
inline constexpr int kNumFinishReasons = 8;

// "", "stop", "length", "cache_full", "cancelled", "deadline", "error", "refused".
std::string_view FinishReasonName(FinishReason reason);
inline std::ostream& operator<<(std::ostream& out, FinishReason reason) {
  return out << FinishReasonName(reason);
}

// The log-probability of a token, given all tokens before it.
struct TokenLogProbs {
  struct Candidate {
    int32_t token = 0;
    float log_prob = 0.0f;

    friend bool operator==(const Candidate&, const Candidate&) = default;
  };

  int32_t token = 0;
  float log_prob = 0.0f;
  int32_t rank = 0;                 // 1 + the number of more likely tokens
  std::vector<Candidate> top = {};  // the n most likely tokens, in descending order

  friend bool operator==(const TokenLogProbs&, const TokenLogProbs&) = default;
};

// A new token of a sequence, or the end of a sequence, or both. Exactly one event of each sequence
// has a FinishReason other than kNone: its last event.
struct TokenEvent {
  SequenceId sequence = {};  // as returned by Add()
  int sample = 0;            // index of the sequence in the request: 0 to num_sequences - 1
  // nullopt: the sequence ended without a token (kCancelled, kDeadline, kError, kRefused, or
  // kLength of a prompt that is only scored).
  std::optional<int32_t> token = std::nullopt;
  int index = 0;  // index of the generated token; without a token, the number of generated tokens
  // Row of the step's logits that the token was chosen from. -1: unknown, for a row with a tree of
  // drafts.
  int row = 0;
  // Index into the step's earlier logits (ModelRunner::earlier_logits()), if the token was chosen
  // from them instead of from the row's logits: for forced tokens that were fed in a chunk, and for
  // accepted drafts. -1: the token was chosen from the row's logits, or this is unknown (`row` is
  // -1).
  int earlier = -1;
  int64_t step = -1;  // the step that computed the token (StepRunner::Launch()); -1: none
  // Log-probabilities of the token; nullopt unless Request::num_log_probs requests them.
  std::optional<TokenLogProbs> log_probs = std::nullopt;
  // Entry i belongs to token i + 1 of the prompt. Set in the first event of a sequence that has
  // computed its prompt, with Request::num_prompt_log_probs; otherwise null. Shared by the
  // sequences of a request.
  std::shared_ptr<const std::vector<TokenLogProbs>> prompt_log_probs = nullptr;
  // Number of prompt tokens that were not computed for this sequence, because the cache had their
  // keys when it was admitted, or because another sequence of the request had computed them. Set in
  // the last event of a sequence; otherwise 0.
  int num_cached_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  absl::Status error = absl::OkStatus();  // the reason, if finish is kError or kRefused

  friend bool operator==(const TokenEvent&, const TokenEvent&) = default;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_REQUEST_H_
