// The state of a request and of its sequences between Scheduler::Add() and their last event.
//
//   RequestState      one per request; owns its sequences
//   SequenceState     one per sequence; never moves, so pointers to it stay valid
//
// Life of a sequence:
//
//   state     slot, blocks         leaves by
//   waiting   no slot; host        admission -> running; Cancel, EndExpired, EndAll -> finished
//             blocks if swapped out
//   running   a slot and blocks    last token, Cancel, EndExpired, a failure -> finished;
//                                  preemption -> waiting
//   finished  no slot, no blocks   forgotten once no batch in flight has a row of the request
//
// Thread safety: plain values; one owner (SequenceTable).

#ifndef REPRISE_ENGINE_SCHEDULING_SEQUENCE_STATE_H_
#define REPRISE_ENGINE_SCHEDULING_SEQUENCE_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/blocks/sequence_content.h"
#include "reprise/engine/prompt_content.h"
#include "reprise/engine/request.h"
#include "reprise/engine/speculation/predicted_text.h"
#include "reprise/engine/speculation_policy.h"

namespace reprise {

struct RequestState;

// The tokens of a sequence have three counts:
//
//   num_known      prompt tokens, and generated tokens that have been committed
//   num_in_flight  tokens that the batches in flight generate. A row with drafts counts as if all
//                  drafts were accepted, so this count and num_scheduled are upper bounds.
//   num_scheduled  tokens whose keys are cached, or will be once the batches in flight have run
//
// While the prompt is computed, num_in_flight = 0 and num_scheduled < num_known. Afterwards
// num_scheduled = num_known + num_in_flight - 1, because the newest token has no keys yet. With two
// or more batches in flight num_scheduled exceeds num_known. A tree of drafts in flight adds all
// its nodes to num_scheduled, and its depth to num_in_flight.
struct SequenceState {
  // Keys that a running sequence is computing. They are cached once it has committed num_tokens.
  struct Awaited {
    SlotId slot;
    int64_t admission = 0;
    int num_tokens = 0;
  };

  RequestState* added = nullptr;
  int sample = 0;  // index within the request
  uint64_t seed = 0;
  std::unique_ptr<StopMatcher> stop_matcher;
  std::unique_ptr<TokenMasker> token_masker;
  // Error of TokenMasker::Fill(). The next commit of a row ends the sequence with this error.
  absl::Status failure;
  DraftLength draft_length;
  std::optional<PredictedText> predicted;  // set if the request has predicted_tokens
  std::vector<int32_t> tokens;             // num_known tokens, then the remaining forced tokens
  int num_known = 0;
  int num_scheduled = 0;
  int num_in_flight = 0;
  // The host feeds the tokens before this index, in chunks: the tokens known at admission, and
  // forced tokens if they are fed like a prompt (FeedsForcedInChunks()).
  int prefill_end = 0;
  // Lower bound of the leading tokens that a drafter with a KV cache has read, as of the committed
  // batches.
  int num_drafted = 0;
  // Prompt tokens found in the cache, or forked, at the first admission; nullopt before it.
  std::optional<int> num_cached_tokens;
  int64_t admission = 0;  // number of the admission that gave the slot; 0: no slot
  bool finished = false;
  std::optional<SlotId> slot;
  std::optional<Awaited> awaited;
  // Id in the swap store while the sequence waits and its committed tokens are in host memory.
  std::optional<SequenceId> stored_as;

  inline const Request& request() const;
  inline SequenceId id() const;
  int num_prompt() const { return static_cast<int>(request().prompt.size()); }
  int num_generated() const { return num_known - num_prompt(); }
  int num_encoder_tokens() const { return static_cast<int>(request().encoder_tokens.size()); }
  // Known tokens before the newest that a drafter with a KV cache may not have read.
  int num_unseen() const { return num_known - 1 - num_drafted; }
  // Index of the token whose logits give the first token that no batch in flight generates.
  int last_fed() const { return num_known + num_in_flight - 1; }
  inline bool needs_prompt_log_probs() const;
  // Maximum number of drafts per row; 0 if the sequence cannot have drafts
  // (DraftPlanner::MaxDraftsOf()).
  inline int max_drafts() const;
  // Returns up to `most` drafts from the request's predicted tokens, for the sequence's row in the
  // batch being built. Tokens in flight are assumed to be as predicted.
  absl::Span<const int32_t> PredictedDrafts(int most) const {
    if (!predicted.has_value()) return {};
    return predicted->After(num_in_flight - 1, most);  // the row itself generates one token
  }
  bool forced() const { return !request().forced_tokens.empty(); }
  int max_generated() const {
    return forced() ? static_cast<int>(request().forced_tokens.size()) : request().max_new_tokens;
  }
  // Tokens that can still be generated after the tokens in flight.
  int num_left() const { return max_generated() - num_generated() - num_in_flight; }
  // Orders by descending priority, then by order of arrival, then by sample.
  inline bool IsBefore(const SequenceState& other) const;
};

struct RequestState {
  SequenceId id;
  Request request;
  PromptContent content;
  std::vector<RangeKey> range_keys;      // views of content.keys
  std::vector<SequenceState> sequences;  // never resized: their addresses do not change
  int max_drafts = 0;                    // maximum number of drafts per row
  int num_unfinished = 0;                // sequences
  int num_open_rows = 0;                 // rows in batches in flight, of all admissions
  // Log-probabilities computed so far; entry i belongs to token i + 1 of the prompt. Null unless
  // requested. Complete, and constant, once the first sequence has computed the prompt.
  std::shared_ptr<std::vector<TokenLogProbs>> prompt_log_probs;
};

inline const Request& SequenceState::request() const { return added->request; }

inline SequenceId SequenceState::id() const { return added->id; }

inline int SequenceState::max_drafts() const { return added->max_drafts; }

inline bool SequenceState::needs_prompt_log_probs() const {
  return added->prompt_log_probs != nullptr &&
         added->prompt_log_probs->size() + 1 < request().prompt.size();
}

inline bool SequenceState::IsBefore(const SequenceState& other) const {
  if (request().priority != other.request().priority) {
    return request().priority > other.request().priority;
  }
  return id() != other.id() ? id() < other.id() : sample < other.sample;
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_SEQUENCE_STATE_H_
