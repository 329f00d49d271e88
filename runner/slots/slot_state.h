// The state of each sequence that the device keeps between steps.
//
// A sequence lives in a slot from its join to its leave. Its block-table rows, one a KV group
// (cache/kv_group.h), its length and its last token stay on the device: a sampled token feeds the
// next step without the host. The host changes the state only through a StepDelta
// (runner/slots/step_delta.h), which refill applies; sampling advances last_token and sample_index.
// Zero-filled at creation.
//
// Views into storage that ModelRunner owns; on the CPU the "device" is host memory. Written by
// refill and sampling, in stream order; never by the host after creation.

#ifndef REPRISE_RUNNER_SLOTS_SLOT_STATE_H_
#define REPRISE_RUNNER_SLOTS_SLOT_STATE_H_

#include <cstdint>

#include "reprise/attention/speculation/token_history.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

struct SlotState {
  // [num_groups, num_slots, max_blocks]; batches point into it, it is never copied. Null blocks in
  // what the updates have not filled since the slot's last leave.
  int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;        // elements from slot to slot
  int64_t block_table_group_stride = 0;  // elements from group to group
  // [num_slots] tokens whose keys are in the cache, or will be after the step in flight
  int32_t* seq_len = nullptr;
  // [num_slots] tokens of the encoder's input, whose keys are in the blocks of cross groups
  int32_t* encoder_len = nullptr;
  // [num_slots] see SlotJoin; null for models whose positions have one dimension
  int32_t* position_delta = nullptr;
  int32_t* last_token = nullptr;       // [num_slots] newest token, its keys not yet in the cache
  int64_t* sample_index = nullptr;     // [num_slots] tokens sampled so far: the Philox counter
  SamplingParams* sampling = nullptr;  // [num_slots]
  // The tokens of each sequence, for drafters; null without drafters that read them.
  TokenHistory history = {};
  // [num_slots] tokens of the sequence that a draft model has seen: their keys in its layers are in
  // the cache. Null without a draft model.
  int32_t* drafted_len = nullptr;
  int num_slots = 0;
  int max_blocks = 0;
  int num_groups = 1;  // 1 to kMaxKvGroups

  // A group's table [num_slots, max_blocks], and a slot's row of it.
  constexpr int32_t* table(int group) const {
    return block_table + group * block_table_group_stride;
  }
  constexpr int32_t* table_row(int group, int32_t slot) const {
    return table(group) + slot * block_table_stride;
  }

  // What sampling reads and advances.
  constexpr SamplingSlots sampling_slots() const {
    return {.params = sampling,
            .last_token = last_token,
            .sample_index = sample_index,
            .num_slots = num_slots};
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SLOT_STATE_H_
