#include "reprise/engine/scheduling/row_logits.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "reprise/base/catch_all.h"
#include "reprise/runner/sampling/log_probs_view.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {

bool FeedsForcedInChunks(const SequenceState& sequence, int max_earlier_logits) {
  return sequence.forced() && max_earlier_logits > 0;
}

int ScoredChunk(const SequenceState& sequence, int chunk, const EarlierLogits& earlier) {
  const int first = sequence.num_scheduled;
  if (sequence.needs_prompt_log_probs() && first < sequence.num_prompt() - 1) {
    chunk = std::min(chunk, sequence.num_prompt() - first);
  } else if (!FeedsForcedInChunks(sequence, earlier.max)) {
    return chunk;
  } else if (first < sequence.last_fed()) {
    // Tokens before the first scored token are computed in a row without earlier logits.
    return std::min(chunk, sequence.last_fed() + 1 - first);
  }
  return std::min(chunk, earlier.max - earlier.used + 1);
}

std::optional<LogitsRequest> LogitsRequestOf(const SequenceState& sequence) {
  LogitsRequest request = ToLogitsRequest(sequence.request());
  if (request.params == LogitsParams() && request.stages == 0) return std::nullopt;
  request.slot = *sequence.slot;
  // After a preemption, generated tokens count as output, not as prompt.
  const absl::Span<const int32_t> tokens = sequence.tokens;
  request.prompt = tokens.first(sequence.num_prompt());
  request.output = tokens.subspan(sequence.num_prompt(), sequence.num_generated());
  return request;
}

void SetOutput(const SequenceState& sequence, ScheduledRow& row, OpenRow& open) {
  const int first = sequence.num_scheduled;
  const int end = first + row.query_len();
  if (sequence.max_generated() > 0) {
    open.num_new_tokens = std::max(end - std::max(first, sequence.last_fed()), 0);
  }
  open.scores_prompt = sequence.needs_prompt_log_probs() && first < sequence.num_prompt() - 1;
  const bool scores_forced =
      sequence.forced() && open.num_new_tokens > 0 && sequence.request().num_log_probs >= 0;
  // A row of forced tokens that are not scored samples a token, which is ignored: it shows whether
  // the logits are NaN.
  open.output = open.num_new_tokens > 0 && !scores_forced ? RowOutput::kToken : RowOutput::kNone;
  row.output = open.output;
  if (open.scores_prompt || open.num_new_tokens > 1) row.logits = RowLogits::kAll;
  if (open.output == RowOutput::kNone && (open.scores_prompt || scores_forced) &&
      static_cast<size_t>(end) < sequence.tokens.size()) {
    row.next_token = sequence.tokens[end];
  }
}

bool NeedsMask(const SequenceState& sequence, const OpenRow& open) {
  return sequence.token_masker != nullptr && open.output == RowOutput::kToken;
}

void SetMask(SequenceState& sequence, absl::Span<int32_t> mask, ScheduledRow& row, OpenRow& open) {
  if (sequence.failure.ok()) {
    sequence.failure = CallUser("TokenMasker::Fill()", [&] { sequence.token_masker->Fill(mask); });
  }
  if (sequence.failure.ok()) {
    row.allowed_tokens = mask;
    return;
  }
  // Without a mask the row must not choose a token. It computes keys, and its commit ends the
  // sequence.
  row.output = open.output = RowOutput::kNone;
  if (row.tokens.empty()) {
    row.tokens = absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, 1);
  }
}

int EarlierOf(const OpenRow& row, int position) {
  const bool is_last = position == row.first_token + row.num_tokens - 1;
  return is_last || !row.has_earlier ? -1 : row.first_earlier + position - row.first_token;
}

TokenLogProbs LogProbsOf(const RowPosition& position, const StepResult& result, int32_t token,
                         int num_top) {
  const int earlier = EarlierOf(position.row, position.position);
  const RowLogProbsView& view = earlier < 0 ? result.log_probs : result.earlier_log_probs;
  const int entry = earlier < 0 ? position.row_idx : earlier;
  CHECK_LT(static_cast<size_t>(entry), view.token_log_probs.size())
      << "the step has not returned the requested log-probabilities";
  TokenLogProbs log_probs = {
      .token = token, .log_prob = view.token_log_probs[entry], .rank = view.token_ranks[entry]};
  const absl::Span<const int32_t> top_tokens = view.top_tokens_of(entry);
  const absl::Span<const float> top_log_probs = view.top_log_probs_of(entry);
  CHECK_LE(num_top, view.max_top);
  log_probs.top.reserve(num_top);
  for (int i = 0; i < num_top && top_tokens[i] >= 0; ++i) {
    log_probs.top.push_back({.token = top_tokens[i], .log_prob = top_log_probs[i]});
  }
  return log_probs;
}

bool CollectPromptLogProbs(const OpenRow& row, int row_idx, const StepResult& result) {
  if (!row.scores_prompt) return true;
  const Request& request = row.sequence->request();
  std::vector<TokenLogProbs>& collected = *row.sequence->added->prompt_log_probs;
  const int end = std::min(row.first_token + row.num_tokens, row.sequence->num_prompt() - 1);
  for (int position = row.first_token; position < end; ++position) {
    // Tokens that are computed again after a preemption are not new.
    const bool is_new = static_cast<size_t>(position) >= collected.size();
    TokenLogProbs log_probs =
        LogProbsOf({row, row_idx, position}, result, request.prompt[position + 1],
                   is_new ? request.num_prompt_log_probs : 0);
    if (std::isnan(log_probs.log_prob)) return false;
    if (!is_new) continue;
    CHECK_EQ(static_cast<size_t>(position), collected.size());
    collected.push_back(std::move(log_probs));
  }
  return true;
}

}  // namespace reprise
