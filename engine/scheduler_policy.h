// The policy of a scheduler: how it chooses the sequences and tokens of each step.
//
// Thread safety: a plain value.

#ifndef REPRISE_ENGINE_SCHEDULER_POLICY_H_
#define REPRISE_ENGINE_SCHEDULER_POLICY_H_

#include <cstdint>
#include <optional>

#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/speculation_policy.h"

namespace reprise {

// How a scheduler chooses what runs. All other limits come from the runner (RunnerShape).
struct SchedulerPolicy {
  // Maximum number of prompt tokens per row and step. 0: shape.max_num_tokens.
  int prefill_chunk = 0;
  // Maximum number of prompt tokens, over all rows, per step that has decodes. Larger values raise
  // throughput and inter-token latency. 0: what max_num_tokens leaves.
  int max_prefill_tokens_while_decoding = 0;
  // Maximum number of sequences that wait before Add() refuses. 0: no limit.
  int max_waiting = 0;
  // Draft counts and limits; at most the runner's maximum number of drafts. nullopt: the runner's
  // maximum. Each step then has the draft count with the highest measured throughput
  // (SpeculationPolicy::measures_steps). With DraftAcceptance::kRejection, every step has drafts
  // instead, because the output depends on which steps have drafts.
  std::optional<SpeculationPolicy> speculation = std::nullopt;
  // Whether a prompt reuses the cached keys of an equal prefix. Does not change the output if the
  // kernels compute keys independently of the chunk length.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  // kCopied: a cached prefix may end within a block, which is then copied. This saves computing up
  // to block_size - 1 tokens of the prompt. The scheduler then keeps the tokens of all cached
  // blocks, 4 bytes per token.
  PartialHits partial_hits = PartialHits::kNone;
  // Seed of the prefix hashes. nullopt: random. All processes of one router must use the same seed.
  // Keep it secret from clients.
  std::optional<PrefixSeed> prefix_seed = std::nullopt;
  // Maximum number of events per TakePrefixEvents(); 0: none. 96 bytes each.
  int64_t num_prefix_events = 0;
  // How a sequence gives up its blocks. Swaps require shape.num_swap_blocks.
  PreemptionMode preemption = PreemptionMode::kAuto;
  // nullopt: H200PreemptionCosts(); an Engine replaces the step times with times that its runner
  // has measured (StepRunner::step_times()).
  std::optional<PreemptionCosts> preemption_costs = std::nullopt;
  // Seed of the generator that draws seeds for requests without one. nullopt: from the operating
  // system.
  std::optional<uint64_t> seed = std::nullopt;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SCHEDULER_POLICY_H_
