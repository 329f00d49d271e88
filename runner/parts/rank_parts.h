// The parts of a runner whose model is sharded over ranks.
//
// Thread safety: none; one owner each. The objects that they are given must outlive them.

#ifndef REPRISE_RUNNER_PARTS_RANK_PARTS_H_
#define REPRISE_RUNNER_PARTS_RANK_PARTS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "reprise/runner/ranks/context_rows.h"
#include "reprise/runner/ranks/shard_sampler.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/step_part.h"

namespace reprise {

// Restricts attention to the keys of this rank if ranks shard the keys of each sequence.
class ContextPart final : public StepPart, private StepStage {
 public:
  ContextPart(const ContextRowsOptions& options, const RunnerMemory* memory)
      : rows_(options), num_groups_(options.num_groups), memory_(*memory) {}

  int64_t bytes() const override { return rows_.bytes(); }
  void AddTo(Fingerprint& fingerprint) const override { rows_.AddTo(fingerprint); }
  StepStage* stage() override { return this; }

 private:
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;
  Work Before(const GraphKey& key, const StepVariant& variant) override;

  ContextRows rows_;
  int num_groups_;
  const RunnerMemory& memory_;
};

// Keeps the logits of a step without drafts sharded over ranks. Samples tokens from the shards if
// the parameters of all rows allow it and no other code reads the logits. Otherwise gathers whole
// logits.
class ShardPart final : public StepPart,
                        private BatchInput,
                        private StepStage,
                        private TokenChooser {
 public:
  // `plain` samples from whole logits.
  ShardPart(std::unique_ptr<ShardSampler> sampler, const RunnerMemory* memory, TokenChooser* plain)
      : sampler_(std::move(sampler)), memory_(*memory), plain_(*plain) {}

  // Makes each kind of collective call once, so that their memory is allocated before memory is
  // measured.
  absl::Status WarmUp() { return sampler_->WarmUp(memory_.steps().logits()); }

  int64_t bytes() const override { return sampler_->bytes(); }
  void AddTo(Fingerprint& fingerprint) const override { sampler_->AddTo(fingerprint); }
  BatchInput* slot_input() override { return this; }
  StepStage* stage() override { return this; }
  TokenChooser* chooser() override { return this; }

 private:
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;
  // Steps with drafts have whole logits: another chooser serves them.
  bool Serves(const StepPlan& plan) const override { return !plan.has_drafts(); }
  absl::Status CompleteLogits(const StepPlan& plan) override;
  absl::Status Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) override;
  // Whether the tokens of the step are sampled from the shards, without gathering logits.
  bool SamplesShards(const StepPlan& plan) const;

  std::unique_ptr<ShardSampler> sampler_;
  const RunnerMemory& memory_;
  TokenChooser& plain_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_RANK_PARTS_H_
