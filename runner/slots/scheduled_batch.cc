#include "reprise/runner/slots/scheduled_batch.h"

#include "glog/logging.h"

namespace reprise {

SlotJoin JoinOf(SlotId slot, const PromptHits& hits, size_t prompt_len,
                const SamplingParams& sampling) {
  return {.slot = slot,
          .seq_len = hits.num_tokens,
          .prompt_len = static_cast<int32_t>(prompt_len),
          .sampling = sampling,
          .encoder_is_cached = hits.has_encoder};
}

int FirstEarlierLogits(absl::Span<const ScheduledRow> rows, int row) {
  CHECK_GE(row, 0);
  CHECK_LT(row, static_cast<int>(rows.size()));
  int first = 0;
  for (int i = 0; i < row; ++i) first += rows[i].num_earlier_logits();
  return first;
}

}  // namespace reprise
