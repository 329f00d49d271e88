// The part of a runner that proposes and verifies drafts, with the state that both keep per
// sequence. Drafts are chains or trees. They come from n-grams, a draft model, heads or the caller.
//
//   drafts        proposed at the start of a step's graph, into its token_ids
//   forward pass  computes the logits of all positions
//   verification  at the end of the graph, or after the graph (StepPlan::verifies_in_graph)
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_DRAFTING_SPECULATION_PART_H_
#define REPRISE_RUNNER_DRAFTING_SPECULATION_PART_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/speculation/tree_tokens_args.h"
#include "reprise/runner/drafting/draft_model.h"
#include "reprise/runner/drafting/draft_trees.h"
#include "reprise/runner/drafting/draft_verification.h"
#include "reprise/runner/drafting/head_drafts.h"
#include "reprise/runner/drafting/head_model.h"
#include "reprise/runner/model.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/step_outputs.h"
#include "reprise/runner/step_part.h"

namespace reprise {

class Collectives;

struct SpeculationPartOptions {
  SpeculationOptions drafts = {};      // resolved; max_drafts above 0
  const Model* model = nullptr;        // the model that verifies
  Collectives* collectives = nullptr;  // null: one rank
  bool attention_in_graphs = true;     // DebugOptions::attention
};

// Returns whether the drafter has attention layers, whose keys are in the cache: a draft model, or
// heads with attention layers.
bool HasDraftLayers(const SpeculationOptions& options);
// Returns whether heads with attention layers propose the drafts.
bool HeadsAttend(const SpeculationOptions& options);
// Returns whether the proposer reads the token history of a sequence. True for n-grams, for the
// caller's drafters, and for drafters with a KV cache, which must process all tokens of the
// sequence.
bool ReadsHistories(const SpeculationOptions& options);
// Returns whether the logits that drafts were sampled from are kept, for rejection sampling.
bool KeepsDraftLogits(const SpeculationOptions& options);

class SpeculationPart final : public StepPart,
                              private BatchInput,
                              private StepStage,
                              private TokenChooser {
 public:
  // Allocates. The objects that it is given must outlive it. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SpeculationPart>> Create(
      const SpeculationPartOptions& options, const RunnerShape& shape, RunnerMemory* memory,
      const StepOutputs* outputs);

  int64_t bytes() const override;
  void AddTo(Fingerprint& fingerprint) const override;
  absl::Status SetCache() override;
  void FillRefill(const StepPlan& plan, RefillArgs& args) const override;
  BatchInput* slot_input() override { return this; }
  StepStage* stage() override { return this; }
  TokenChooser* chooser() override { return this; }

 private:
  SpeculationPart(const SpeculationPartOptions& options, const RunnerShape& shape,
                  RunnerMemory* memory, const StepOutputs* outputs)
      : options_(options), shape_(shape), memory_(*memory), outputs_(*outputs) {}
  absl::Status Allocate();
  // Calls `visit` with each member that allocates device memory and exists.
  template <typename Visit>
  void ForEachMember(Visit visit) const;
  absl::Status AllocateHeads(int max_logits, std::optional<DType> kept_logits_dtype);
  absl::Status AllocateDraftModel(std::optional<DType> kept_logits_dtype);

  // BatchInput: restores the token history of joining sequences with cached tokens, unless the
  // drafter has processed all of these tokens. Marks the heads' hidden states of joining slots as
  // unknown.
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;

  // StepStage.
  void Fill(const GraphKey& key, const StepVariant& variant, Step::Parts& parts) const override;
  Work Before(const GraphKey& key, const StepVariant& variant) override;
  Work After(const GraphKey& key, const StepVariant& variant) override;
  // Returns the arguments that turn the rows with drafts of a step at `key` into trees.
  TreeTokensArgs TreeTokensOf(const GraphKey& key) const;
  // Returns the work that proposes the drafts of a step at `key`; null if no drafts are proposed.
  Work Proposals(const GraphKey& key) const;
  // Returns whether a step runs the draft model over its own tokens, because it has prefill chunks.
  bool RunsDraftModel(const GraphKey& key, bool has_given_tokens) const;
  // Errors: InvalidArgument if there are heads, and the forward pass has not passed its hidden
  // states to Step::KeepHidden().
  absl::Status CheckHiddenTaken() const;

  // TokenChooser.
  bool Serves(const StepPlan& plan) const override { return plan.has_drafts(); }
  absl::Status Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) override;
  VerifiedOutput ResultsAt(int32_t* device_tokens) const;

  SpeculationPartOptions options_;
  RunnerShape shape_;
  RunnerMemory& memory_;
  const StepOutputs& outputs_;
  std::unique_ptr<DraftTrees> trees_;        // null: drafts are chains
  std::unique_ptr<HeadDrafts> heads_;        // heads without attention layers; null: not used
  std::unique_ptr<HeadModel> head_model_;    // heads with attention layers; null: not used
  std::unique_ptr<DraftModel> draft_model_;  // null: no drafter has layers
  std::unique_ptr<DraftVerification> verification_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_SPECULATION_PART_H_
