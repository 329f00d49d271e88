// The logits of rows: the tokens that a row generates or scores, the mask of the tokens that it may
// choose, and the log-probabilities that a step returns.
//
// Maskers. A sequence with a TokenMasker has a row only when all its tokens are known, and the row
// carries the mask for the token after them. Other sequences do not wait.
//
// Scoring. A prompt with requested log-probabilities is computed from its first token whose logits
// are missing. Its chunks, and chunks of forced tokens, request the logits of all their tokens
// (RowLogits::kAll), limited by max_earlier_logits.
//
// Thread safety: pure functions of their arguments. Allocate only for log-probabilities.

#ifndef REPRISE_ENGINE_SCHEDULING_ROW_LOGITS_H_
#define REPRISE_ENGINE_SCHEDULING_ROW_LOGITS_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduling/open_batches.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"

namespace reprise {

// ---- Before the step.

// The earlier logits of a step: the maximum (RunnerShape::max_earlier_logits), and the number that
// the rows added so far use.
struct EarlierLogits {
  int max = 0;
  int used = 0;
};

// Whether the sequence's forced tokens are fed in chunks, like a prompt.
bool FeedsForcedInChunks(const SequenceState& sequence, int max_earlier_logits);

// Returns how many of the next `chunk` tokens of a prompt to compute, so that the row's earlier
// logits fit. REQUIRES: earlier.used <= earlier.max, unless earlier.max is 0.
int ScoredChunk(const SequenceState& sequence, int chunk, const EarlierLogits& earlier);

// Returns the request for the logits of a sequence that joins, or nullopt if it has none. The
// request views the sequence.
std::optional<LogitsRequest> LogitsRequestOf(const SequenceState& sequence);

// Sets the output, logits and next_token of the sequence's next row, whose tokens are set; and the
// output, num_new_tokens and scores_prompt of `open`.
void SetOutput(const SequenceState& sequence, ScheduledRow& row, OpenRow& open);

// Whether SetMask() must be called for the row.
bool NeedsMask(const SequenceState& sequence, const OpenRow& open);

// Fills `mask` for the row. If the masker throws, the row generates no token and
// SequenceState::failure is set. REQUIRES: NeedsMask(); `mask` has mask_words words.
void SetMask(SequenceState& sequence, absl::Span<int32_t> mask, ScheduledRow& row, OpenRow& open);

// ---- After the step.

// Returns the index in the step's earlier logits of the row's token at `position`; -1 for the row's
// last token, and if the row has no earlier logits.
int EarlierOf(const OpenRow& row, int position);

// A token of a row of a step.
struct RowPosition {
  const OpenRow& row;
  int row_idx = 0;
  int position = 0;  // index in the sequence; must lie in the row
};

// Returns the log-probability of `token` after the token at `position`, and the `num_top` most
// likely tokens. REQUIRES: the row requested these log-probabilities.
TokenLogProbs LogProbsOf(const RowPosition& position, const StepResult& result, int32_t token,
                         int num_top);

// Appends the log-probabilities of prompt tokens that a row has computed to
// RequestState::prompt_log_probs. Returns false if one of them is NaN.
bool CollectPromptLogProbs(const OpenRow& row, int row_idx, const StepResult& result);

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULING_ROW_LOGITS_H_
