// The Scheduler's part between logits and tokens: what rows ask for, masks, and log-probabilities.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/types/span.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"
#include "runner/sampling/logits_params.h"

namespace reprise {

// ---- What rows ask for.

void Scheduler::AddLogitsRequest(const Sequence& sequence) {
  LogitsRequest request = ToLogitsRequest(sequence.request());
  if (request.params == LogitsParams() && request.stages == 0) return;
  request.slot = *sequence.slot;
  // The sequence may have lost its slot before: what it has generated counts.
  const absl::Span<const int32_t> tokens = sequence.tokens;
  request.prompt = tokens.first(sequence.num_prompt());
  request.output = tokens.subspan(sequence.num_prompt(), sequence.num_generated());
  logits_requests_.push_back(request);
}

bool Scheduler::FeedsForcedInChunks(const Sequence& sequence) const {
  return sequence.forced() && options_.max_earlier_logits > 0;
}

int Scheduler::ScoredChunk(const Sequence& sequence, int chunk) const {
  const int first = sequence.num_scheduled;
  if (sequence.needs_prompt_log_probs() && first < sequence.num_prompt() - 1) {
    chunk = std::min(chunk, sequence.num_prompt() - first);
  } else if (!FeedsForcedInChunks(sequence)) {
    return chunk;
  } else if (first < sequence.last_fed()) {
    // Tokens before those whose logits are wanted have a row of their own.
    return std::min(chunk, sequence.last_fed() + 1 - first);
  }
  return std::min(chunk, options_.max_earlier_logits - num_earlier_logits_ + 1);
}

void Scheduler::SetOutput(Sequence& sequence, ScheduledRow& row, OpenRow& open) {
  const int first = sequence.num_scheduled;
  const int end = first + row.query_len();
  if (sequence.max_generated() > 0) {
    open.num_new_tokens = std::max(end - std::max(first, sequence.last_fed()), 0);
  }
  open.scores_prompt = sequence.needs_prompt_log_probs() && first < sequence.num_prompt() - 1;
  const bool scores_forced =
      sequence.forced() && open.num_new_tokens > 0 && sequence.request().num_log_probs >= 0;
  // A forced token that is not scored is fed in place of one that is chosen: a row of NaN shows.
  open.output = open.num_new_tokens > 0 && !scores_forced ? RowOutput::kToken : RowOutput::kNone;
  row.output = open.output;
  if (open.scores_prompt || open.num_new_tokens > 1) row.logits = RowLogits::kAll;
  if (open.output == RowOutput::kNone && (open.scores_prompt || scores_forced) &&
      static_cast<size_t>(end) < sequence.tokens.size()) {
    row.next_token = sequence.tokens[end];
  }
  open.first_earlier = num_earlier_logits_;
  open.has_earlier = row.num_earlier_logits() > 0;
  if (sequence.token_masker != nullptr && open.output == RowOutput::kToken) {
    const absl::Span<int32_t> mask =
        absl::MakeSpan(masks_).subspan(rows_.size() * options_.mask_words, options_.mask_words);
    sequence.token_masker->Fill(mask);
    row.allowed_tokens = mask;
  }
}

// ---- What comes of it.

int Scheduler::EarlierOf(const OpenRow& row, int position) {
  const bool is_last = position == row.first_token + row.num_tokens - 1;
  return is_last || !row.has_earlier ? -1 : row.first_earlier + position - row.first_token;
}

TokenLogProbs Scheduler::LogProbsOf(const OpenRow& row, int row_idx, int position,
                                    const StepOutput& output, int32_t token, int num_top) {
  const int earlier = EarlierOf(row, position);
  const RowLogProbsView& view = earlier < 0 ? output.log_probs : output.earlier_log_probs;
  const int entry = earlier < 0 ? row_idx : earlier;
  CHECK_LT(static_cast<size_t>(entry), view.token_log_probs.size())
      << "a step without the log-probabilities that it was asked for";
  TokenLogProbs result = {
      .token = token, .log_prob = view.token_log_probs[entry], .rank = view.token_ranks[entry]};
  const absl::Span<const int32_t> top_tokens = view.top_tokens_of(entry);
  const absl::Span<const float> top_log_probs = view.top_log_probs_of(entry);
  CHECK_LE(num_top, view.max_top);
  result.top.reserve(num_top);
  for (int i = 0; i < num_top && top_tokens[i] >= 0; ++i) {
    result.top.push_back({.token = top_tokens[i], .log_prob = top_log_probs[i]});
  }
  return result;
}

bool Scheduler::CollectPromptLogProbs(const OpenRow& row, int row_idx, const StepOutput& output) {
  if (!row.scores_prompt) return true;
  const Request& request = row.sequence->request();
  std::vector<TokenLogProbs>& collected = *row.sequence->added->prompt_log_probs;
  const int end = std::min(row.first_token + row.num_tokens, row.sequence->num_prompt() - 1);
  for (int position = row.first_token; position < end; ++position) {
    const bool is_new = static_cast<size_t>(position) >= collected.size();  // else: a preemption
    TokenLogProbs log_probs =
        LogProbsOf(row, row_idx, position, output, request.prompt[position + 1],
                   is_new ? request.num_prompt_log_probs : 0);
    if (std::isnan(log_probs.log_prob)) return false;
    if (!is_new) continue;
    CHECK_EQ(static_cast<size_t>(position), collected.size());
    collected.push_back(std::move(log_probs));
  }
  return true;
}

}  // namespace reprise
