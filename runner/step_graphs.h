// Runs the forward pass of a runner's steps: as replayed graphs, or eagerly.
//
// The work of a step at a key, in this order: Before() of all stages, the metadata of attention,
// Model::Forward() and the copy of its logits, After() of all stages. Each stage may change what
// the model's step reads and writes (StepStage::Fill()).
//
// A fingerprint of addresses and sizes that graphs contain is collected from the runner's memory
// and from all parts. Replays compare it in debug builds, and with ReplayCheck::kEveryReplay in all
// builds.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_STEP_GRAPHS_H_
#define REPRISE_RUNNER_STEP_GRAPHS_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/runner/model.h"
#include "reprise/runner/parts/runner_parts.h"
#include "reprise/runner/rank_session.h"
#include "reprise/runner/replay_check.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/step_part.h"
#include "reprise/runner/step_plan.h"

namespace reprise {

struct StepGraphsOptions {
  GraphSetOptions graphs = {};
  bool attention_in_graphs = true;  // DebugOptions::attention
  bool checks_replays = false;      // ReplayCheck::kEveryReplay
};

class StepGraphs {
 public:
  // The objects that it is given must outlive it. Errors: as GraphSet::Create().
  static absl::StatusOr<std::unique_ptr<StepGraphs>> Create(const StepGraphsOptions& options,
                                                            Model* model, RunnerMemory* memory,
                                                            RunnerParts* parts,
                                                            const RankSession* ranks);

  GraphDecision Decide(const StepShape& shape) const { return graphs_->Decide(shape); }
  // Returns whether the plan's step consists of one replay of a graph that has already been
  // captured.
  bool ReplaysCaptured(const StepPlan& plan) const;

  // Runs the forward pass of the plan's step, and updates plan.decision to the decision that was
  // taken. Errors: as the step; FailedPrecondition if the fingerprint has changed since the
  // capture; Internal if a checked replay differs from the eager step.
  absl::Status Run(StepPlan& plan);
  void Count(const StepPlan& plan) { graphs_->Count(plan.decision, plan.shape); }

  // Returns the work of a step at `key`.
  StepStage::Work MakeStep(const GraphKey& key, const StepVariant& variant) const;

  // Set-up, in this order; a runner skips the calls that do not apply. EstimateBytes() estimates
  // the memory of graphs, with a minimal cache; TimeProducts() runs the steps of all keys, which
  // times their GEMMs; Capture() captures the graphs if the mode is kEager.
  absl::StatusOr<int64_t> EstimateBytes();
  absl::Status TimeProducts();
  absl::Status Capture();

  // Returns the current values that captured graphs contain: addresses and sizes.
  Fingerprint fingerprint() const;
  const GraphReport& report() const { return graphs_->report(); }

 private:
  StepGraphs(const StepGraphsOptions& options, Model* model, RunnerMemory* memory,
             RunnerParts* parts, const RankSession* ranks)
      : options_(options), model_(*model), memory_(*memory), parts_(*parts), ranks_(*ranks) {}
  StepStage::Work MakeCapturedStep(const GraphKey& key);
  Step::Parts PartsAt(const GraphKey& key, const StepVariant& variant) const;
  EagerReason EagerReasonFor(const StepPlan& plan) const;
  absl::Status RunEagerly(StepPlan& plan, EagerReason reason);
  void CollectFingerprint(Fingerprint& fingerprint) const;
  absl::Status CheckReplay(const StepPlan& plan);

  StepGraphsOptions options_;
  Model& model_;
  RunnerMemory& memory_;
  RunnerParts& parts_;
  const RankSession& ranks_;
  GraphSet::StepMaker make_captured_;
  Fingerprint current_;  // as of the last check
  ReplayChecker checker_;
  std::unique_ptr<GraphSet> graphs_;  // destroyed before the members that its graphs read
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_GRAPHS_H_
