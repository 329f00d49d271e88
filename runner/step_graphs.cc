#include "reprise/runner/step_graphs.h"

#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

#ifdef NDEBUG
constexpr bool kIsDebugBuild = false;
#else
constexpr bool kIsDebugBuild = true;
#endif

absl::Status RunAll(const std::vector<StepStage::Work>& works) {
  for (const StepStage::Work& work : works) REPRISE_RETURN_IF_ERROR(work());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepGraphs>> StepGraphs::Create(const StepGraphsOptions& options,
                                                               Model* model, RunnerMemory* memory,
                                                               RunnerParts* parts,
                                                               const RankSession* ranks) {
  auto graphs = std::unique_ptr<StepGraphs>(new StepGraphs(options, model, memory, parts, ranks));
  graphs->make_captured_ = [graphs = graphs.get()](const GraphKey& key) {
    return graphs->MakeCapturedStep(key);
  };
  REPRISE_ASSIGN_OR_RETURN(graphs->graphs_,
                           GraphSet::Create(options.graphs, &memory->driver().graphs()));
  return graphs;
}

Step::Parts StepGraphs::PartsAt(const GraphKey& key, const StepVariant& variant) const {
  const StepMemory& steps = memory_.steps();
  const StepArrays& arrays = steps.arrays();
  const int64_t num_tokens = key.padded_num_tokens;
  const int num_logits = key.padded_num_seqs + key.num_earlier_logits;
  std::vector<at::Tensor> slot_mappings;
  for (int group = 0; group < memory_.classes().num_groups(); ++group) {
    slot_mappings.push_back(steps.View(arrays.group_slots(group), num_tokens));
  }
  Step::Parts parts = {.token_ids = steps.View(arrays.token_ids, num_tokens),
                       .positions = steps.ModelPositions(num_tokens),
                       .slot_mappings = std::move(slot_mappings),
                       .logits_indices = steps.View(arrays.logits_indices, num_logits),
                       .logits = steps.logits(num_logits),
                       .kv = memory_.model_layers(),
                       .batches = memory_.metadata().BatchesAt(key, arrays, steps.slots()),
                       .metadata = &memory_.metadata(),
                       .linears = &memory_.driver().linears(),
                       .dtype = memory_.spec().dtype,
                       .graphs = &memory_.driver().graphs(),
                       .attends_between_graphs = !options_.attention_in_graphs};
  for (const StepStage* stage : parts_.stages()) stage->Fill(key, variant, parts);
  return parts;
}

StepStage::Work StepGraphs::MakeStep(const GraphKey& key, const StepVariant& variant) const {
  std::vector<StepStage::Work> before, after;
  for (StepStage* stage : parts_.stages()) {
    if (StepStage::Work work = stage->Before(key, variant)) before.push_back(std::move(work));
    if (StepStage::Work work = stage->After(key, variant)) after.push_back(std::move(work));
  }
  Step::Parts parts = PartsAt(key, variant);
  StepBatches batches = parts.batches;
  auto step = std::make_shared<const Step>(std::move(parts));
  return [this, step = std::move(step), batches = std::move(batches), before = std::move(before),
          after = std::move(after)]() -> absl::Status {
    return CatchTorch([&]() -> absl::Status {
      REPRISE_RETURN_IF_ERROR(RunAll(before));
      REPRISE_RETURN_IF_ERROR(memory_.metadata().Build(batches, memory_.model_classes()));
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, model_.Forward(*step));
      REPRISE_RETURN_IF_ERROR(step->KeepLogits(logits));
      step->Watch("logits", step->logits(), WatchedRows::kLogits);
      return RunAll(after);
    });
  };
}

StepStage::Work StepGraphs::MakeCapturedStep(const GraphKey& key) {
  // In a mixed graph, some rows pass tokens from the host. Only mixed graphs have fewer tokens than
  // padded_num_seqs * max_query_len.
  const bool is_mixed =
      key.padded_num_tokens < int64_t{key.padded_num_seqs} * int64_t{key.max_query_len};
  return MakeStep(key, {.watch = options_.checks_replays ? checker_.WatchOf(key) : nullptr,
                        .has_given_tokens = is_mixed,
                        .verifies_drafts = true});
}

EagerReason StepGraphs::EagerReasonFor(const StepPlan& plan) const {
  for (const StepStage* stage : parts_.stages()) {
    const EagerReason reason = stage->EagerReasonFor(plan);
    if (reason != EagerReason::kNone) return reason;
  }
  return EagerReason::kNone;
}

bool StepGraphs::ReplaysCaptured(const StepPlan& plan) const {
  return plan.decision.kind == GraphDecision::Kind::kReplay &&
         graphs_->is_captured(plan.decision.key) && !options_.checks_replays &&
         EagerReasonFor(plan) == EagerReason::kNone;
}

absl::Status StepGraphs::RunEagerly(StepPlan& plan, EagerReason reason) {
  plan.decision.kind = GraphDecision::Kind::kEager;
  plan.decision.reason = reason;
  REPRISE_RETURN_IF_ERROR(memory_.driver().OnStream(
      MakeStep(plan.decision.key, {.calibrates = reason == EagerReason::kCalibrates,
                                   .has_given_tokens = plan.shape.has_given_tokens})));
  for (StepStage* stage : parts_.stages()) stage->RanFor(reason);
  return absl::OkStatus();
}

absl::Status StepGraphs::Run(StepPlan& plan) {
  const EagerReason reason = EagerReasonFor(plan);
  if (reason != EagerReason::kNone) return RunEagerly(plan, reason);
  if (plan.decision.kind != GraphDecision::Kind::kReplay) {
    return RunEagerly(plan, plan.decision.reason);
  }
  if (kIsDebugBuild || options_.checks_replays) CollectFingerprint(current_);
  REPRISE_ASSIGN_OR_RETURN(plan.decision,
                           graphs_->Replay(plan.decision.key, make_captured_, current_));
  const bool is_replay = plan.decision.kind == GraphDecision::Kind::kReplay;
  return options_.checks_replays && is_replay ? CheckReplay(plan) : absl::OkStatus();
}

absl::Status StepGraphs::CheckReplay(const StepPlan& plan) {
  // The eager run writes the same keys to the same slots again.
  ReplayComparison comparison = checker_.Compare(plan.decision.key, plan.shape);
  return memory_.driver().OnStream(
      MakeStep(plan.decision.key, {.watch = &comparison,
                                   .has_given_tokens = plan.shape.has_given_tokens,
                                   .runs_drafter = false}));
}

absl::StatusOr<int64_t> StepGraphs::EstimateBytes() {
  return graphs_->EstimateBytes(make_captured_);
}

absl::Status StepGraphs::TimeProducts() {
  for (const GraphKey& key : graphs_->keys()) {
    REPRISE_RETURN_IF_ERROR(memory_.driver().OnStream(make_captured_(key)));
  }
  return absl::OkStatus();
}

absl::Status StepGraphs::Capture() {
  CollectFingerprint(current_);
  return graphs_->CaptureAll(make_captured_, current_);
}

void StepGraphs::CollectFingerprint(Fingerprint& fingerprint) const {
  fingerprint.Clear();
  memory_.AddTo(fingerprint);
  ranks_.AddTo(fingerprint);
  for (const std::unique_ptr<StepPart>& part : parts_.all()) part->AddTo(fingerprint);
}

Fingerprint StepGraphs::fingerprint() const {
  Fingerprint fingerprint;
  CollectFingerprint(fingerprint);
  return fingerprint;
}

}  // namespace reprise
