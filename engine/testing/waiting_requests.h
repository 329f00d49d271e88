// Requests and blocks for tests of the scheduler's parts, without a Scheduler.

#ifndef REPRISE_ENGINE_TESTING_WAITING_REQUESTS_H_
#define REPRISE_ENGINE_TESTING_WAITING_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler_policy.h"
#include "reprise/engine/scheduling/sequence_state.h"
#include "reprise/engine/scheduling/sequence_table.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {

// 4 slots, 16 tokens per step, sequences of up to 40 tokens, 20 blocks of 4 tokens.
inline RunnerShape SmallShape() {
  return {.max_num_seqs = 4,
          .max_num_tokens = 16,
          .max_seq_len = 40,
          .vocab_size = 100,
          .num_blocks = 21,
          .block_size = 4};
}

// No drafts, chunks of up to max_num_tokens, and fixed preemption costs.
inline SchedulerPolicy SmallPolicy() {
  return {.prefill_chunk = 16,
          .speculation = SpeculationPolicy{},
          .preemption_costs = H200PreemptionCosts(),
          .seed = 7};
}

inline BlockManager MakeBlocks(const RunnerShape& shape,
                               PrefixReuse prefix_reuse = PrefixReuse::kOff) {
  BlockManagerOptions options = BlockOptionsOf(shape);
  options.prefix_reuse = prefix_reuse;
  auto blocks = BlockManager::Create(options);
  CHECK(blocks.ok()) << blocks.status();
  return *std::move(blocks);
}

// Adds a request to the table. Sets the fields of its sequences as Admission does for waiting
// sequences.
inline RequestState& AddRequest(SequenceTable& table, Request request) {
  auto added = std::make_unique<RequestState>();
  added->sequences.resize(request.num_sequences);
  added->request = std::move(request);
  for (SequenceState& sequence : added->sequences) {
    sequence.added = added.get();
    sequence.tokens = added->request.prompt;
    sequence.tokens.insert(sequence.tokens.end(), added->request.forced_tokens.begin(),
                           added->request.forced_tokens.end());
    sequence.num_known = static_cast<int>(added->request.prompt.size());
  }
  return table.Add(std::move(added));
}

// Adds a request with one running sequence. Its prompt is committed, except for the last token.
inline SequenceState& RunRequest(SequenceTable& table, BlockManager& blocks, Request request) {
  SequenceState& sequence = AddRequest(table, std::move(request)).sequences[0];
  table.Admit(sequence);
  const int num_cached = sequence.num_known - 1;
  CHECK(blocks.Add(*sequence.slot, num_cached).ok());
  const absl::Span<const int32_t> tokens = sequence.tokens;
  CHECK(blocks.Commit(*sequence.slot, tokens.first(num_cached)).ok());
  sequence.num_scheduled = num_cached;
  sequence.prefill_end = num_cached;
  return sequence;
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_WAITING_REQUESTS_H_
