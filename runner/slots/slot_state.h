// The per-sequence state that the device keeps between steps.
//
// A sequence occupies a slot from its join to its leave. Its block-table rows, one per KV group
// (cache/kv_group.h), its length and its last token stay on the device: a sampled token is the
// input of the next step without the host. The host changes the state only through a StepDelta
// (runner/slots/step_delta.h), which refill applies. Sampling advances last_token and sample_index;
// the verification of drafts also advances seq_len. The state is zero-filled at creation.
//
// These are views into storage that ModelRunner owns; on the CPU, the "device" is host memory.
// Refill, sampling, drafters and verification write it in stream order. The host does not write it
// after creation.

#ifndef REPRISE_RUNNER_SLOTS_SLOT_STATE_H_
#define REPRISE_RUNNER_SLOTS_SLOT_STATE_H_

#include <cstdint>

#include "reprise/attention/speculation/token_history.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

struct SlotState {
  // [num_groups, num_slots, max_blocks] Batches point into this table; it is not copied. Entries
  // that no update has set since the slot's last leave are null blocks.
  int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;        // elements between slots
  int64_t block_table_group_stride = 0;  // elements between groups
  // [num_slots] tokens whose keys are cached, or will be after the step in flight
  int32_t* seq_len = nullptr;
  // [num_slots] tokens of the encoder's input, whose keys are in the blocks of cross groups
  int32_t* encoder_len = nullptr;
  // [num_slots] as in SlotJoin; null for models whose positions have one dimension
  int32_t* position_delta = nullptr;
  int32_t* last_token = nullptr;       // [num_slots] newest token; its keys are not yet cached
  int64_t* sample_index = nullptr;     // [num_slots] number of sampled tokens: the Philox counter
  SamplingParams* sampling = nullptr;  // [num_slots]
  // The tokens of each sequence, for drafters. Null if no drafter reads them.
  TokenHistory history = {};
  // [num_slots] tokens that a drafter with a KV cache has processed: the cache has their keys for
  // its layers. Null without such a drafter.
  int32_t* drafted_len = nullptr;
  int num_slots = 0;
  int max_blocks = 0;
  int num_groups = 1;  // 1 to kMaxKvGroups

  // Returns a group's table [num_slots, max_blocks], and a slot's row of the table.
  constexpr int32_t* table(int group) const {
    return block_table + group * block_table_group_stride;
  }
  constexpr int32_t* table_row(int group, int32_t slot) const {
    return table(group) + slot * block_table_stride;
  }

  // Returns the state that sampling reads and advances.
  constexpr SamplingSlots sampling_slots() const {
    return {.params = sampling,
            .last_token = last_token,
            .sample_index = sample_index,
            .num_slots = num_slots};
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SLOT_STATE_H_
