// Requests of a batch's rows to the stages between logits and tokens
// (runner/sampling/logits_stages.h). Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_REQUEST_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_REQUEST_H_

#include <cstdint>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {

// A set of the user's stages: bit i is LogitsOptions::stages[i].
using LogitsStageSet = uint32_t;

// The request of a sequence that joins in a batch. Sequences without a request use the defaults.
struct LogitsRequest {
  SlotId slot = {};
  LogitsParams params = {};  // num_biases is ignored: biases.size() counts
  absl::Span<const LogitBias> biases = {};
  // The sequence's tokens so far; read only if it has penalties. `output` is not empty after a
  // preemption. Forced tokens, which rows pass later instead of sampled tokens, are not counted.
  absl::Span<const int32_t> prompt = {};
  absl::Span<const int32_t> output = {};
  LogitsStageSet stages = 0;
};

// The tokens that may follow a row of the batch (runner/sampling/logits_processors.h).
struct AllowedTokens {
  int row = 0;                          // a row that samples
  absl::Span<const int32_t> mask = {};  // [MaskWords(vocab_size)]
};

// The parts of a batch that concern the stages. Read during the call only.
struct LogitsBatch {
  absl::Span<const SlotId> leaves = {};           // applied before the requests
  absl::Span<const LogitsRequest> requests = {};  // distinct slots
  absl::Span<const AllowedTokens> masks = {};     // distinct rows
  absl::Span<const int32_t> sample_slot = {};     // slot of each row; -1: it does not sample
  // Slots of the rows that have logits of known tokens (ScheduledRow::is_scored()).
  absl::Span<const int32_t> scored_slots = {};
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_REQUEST_H_
