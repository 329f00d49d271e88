// The Scheduler's state of a request and its sequences; private to engine/scheduler.h.

#ifndef ENGINE_SCHEDULER_SEQUENCE_H_
#define ENGINE_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/blocks/sequence_content.h"
#include "engine/prompt_content.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/speculation/predicted_text.h"
#include "engine/speculation_policy.h"

namespace reprise {

// A sequence's tokens are counted in three ways:
//   num_known      prompt and generated tokens that the host has seen, or has been told to feed
//   num_in_flight  further tokens, which batches in flight bring; of rows with drafts the most that
//                  they can bring, so that this and the next are bounds from above
//   num_scheduled  tokens whose keys are cached, or will be by a batch in flight
// Until the tokens known at admission are fed, num_in_flight = 0 and num_scheduled < num_known. From
// then on num_scheduled = num_known + num_in_flight - 1, for the last token has no key yet: with two
// batches or more in flight it exceeds num_known. A tree of drafts in flight adds all its nodes to
// num_scheduled and a path of it to num_in_flight.
struct Scheduler::Sequence {
  // Keys that an admitted sequence is computing: they are there when it has committed num_tokens.
  struct Awaited {
    SlotId slot;
    int64_t admission = 0;
    int num_tokens = 0;
  };

  AddedRequest* added = nullptr;
  int sample = 0;
  uint64_t seed = 0;
  std::unique_ptr<StopMatcher> stop_matcher;
  std::unique_ptr<TokenMasker> token_masker;
  DraftLength draft_length;
  std::optional<PredictedText> predicted;  // of the request's predicted_tokens
  std::vector<int32_t> tokens;             // known ones, then forced ones not yet reached
  int num_known = 0;
  int num_scheduled = 0;
  int num_in_flight = 0;
  // Up to here the host feeds tokens, in chunks: those known at admission, and forced ones if they
  // are fed like a prompt.
  int prefill_end = 0;
  // Leading tokens that a drafter with keys has seen, at least, as of the committed batches.
  int num_drafted = 0;
  // Of the prompt, found when it was admitted first; nullopt: it has not been.
  std::optional<int> num_cached_tokens;
  int64_t admission = 0;  // which one of the scheduler's it has its slot by; 0: it has none
  bool finished = false;
  std::optional<SlotId> slot;
  std::optional<Awaited> awaited;
  // Its name in the swap store, while it waits and its committed tokens are in host memory.
  std::optional<SequenceId> stored_as;

  const Request& request() const;
  SequenceId id() const;
  int num_prompt() const { return static_cast<int>(request().prompt.size()); }
  int num_generated() const { return num_known - num_prompt(); }
  // Known tokens before the newest that such a drafter may not have seen.
  int num_unseen() const { return num_known - 1 - num_drafted; }
  // The token whose logits give the next token that no batch in flight brings.
  int last_fed() const { return num_known + num_in_flight - 1; }
  bool needs_prompt_log_probs() const;
  // Of its rows; 0 for sequences whose rows ask for more than tokens.
  int max_drafts() const;
  // Drafts of its newest row, in the batch that is made, that the request expects, up to `most`.
  absl::Span<const int32_t> PredictedDrafts(int most) const {
    if (!predicted.has_value()) return {};
    // What batches before it bring is taken to be as expected; it brings a token itself.
    return predicted->After(num_in_flight - 1, most);
  }
  bool forced() const { return !request().forced_tokens.empty(); }
  int max_generated() const {
    return forced() ? static_cast<int>(request().forced_tokens.size()) : request().max_new_tokens;
  }
  // By priority, then in order of Add().
  bool IsBefore(const Sequence& other) const;
};

struct Scheduler::AddedRequest {
  SequenceId id;
  Request request;
  PromptContent content;
  std::vector<RangeKey> range_keys;  // of content.keys
  std::vector<Sequence> sequences;   // their addresses do not change
  int max_drafts = 0;                // of a row, as far as the request's tokens allow
  int num_unfinished = 0;
  int num_open_rows = 0;  // in batches in flight, of any admission
  // Those that have come: entry i is of token i + 1. Null: not asked for. Complete, and constant,
  // when the first sequence has computed the prompt.
  std::shared_ptr<std::vector<TokenLogProbs>> prompt_log_probs;
};

inline const Request& Scheduler::Sequence::request() const { return added->request; }

inline SequenceId Scheduler::Sequence::id() const { return added->id; }

inline int Scheduler::Sequence::max_drafts() const { return added->max_drafts; }

inline bool Scheduler::Sequence::needs_prompt_log_probs() const {
  return added->prompt_log_probs != nullptr &&
         added->prompt_log_probs->size() + 1 < request().prompt.size();
}

inline bool Scheduler::Sequence::IsBefore(const Sequence& other) const {
  if (request().priority != other.request().priority) {
    return request().priority > other.request().priority;
  }
  return id() != other.id() ? id() < other.id() : sample < other.sample;
}

}  // namespace reprise

#endif  // ENGINE_SCHEDULER_SEQUENCE_H_
