#include "reprise/runner/testing/speculation_harness.h"

#include <c10/core/StreamGuard.h>

#include <limits>
#include <utility>

#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<SpeculationHarness>> SpeculationHarness::Create(
    const ModelRunnerOptions& options, const LayeredModelOptions& model,
    const LayeredModelOptions& draft, std::unique_ptr<DeviceDriver> driver) {
  auto harness = std::unique_ptr<SpeculationHarness>(
      new SpeculationHarness(model, draft, options.max_num_seqs));
  ModelRunnerOptions filled = options;
  if (options.speculation.draft_model() != nullptr) {
    filled.speculation.proposer = ModelProposer{*harness->draft_};
  }
  REPRISE_ASSIGN_OR_RETURN(harness->runner_,
                           ModelRunner::Create(&harness->model_, filled, std::move(driver)));
  const c10::StreamGuard guard(harness->runner_->stream());  // ordered before the steps
  REPRISE_RETURN_IF_ERROR(
      harness->runner_->kv_cache().Fill(std::numeric_limits<float>::quiet_NaN()));
  return harness;
}

Model& SpeculationHarness::AnyDraftModel() {
  static LayeredModel& model = *new LayeredModel(
      {.layers = {
           {.params = {
                .num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 16, .head_dim_v = 16}}}});
  return model;
}

SpeculationHarness::SpeculationHarness(const LayeredModelOptions& model,
                                       const LayeredModelOptions& draft, int max_num_seqs)
    : model_(model),
      draft_(draft.layers.empty() ? nullptr : std::make_unique<LayeredModel>(draft)),
      texts_(max_num_seqs),
      is_new_(max_num_seqs) {}

void SpeculationHarness::Join(int slot, std::vector<int32_t> prompt,
                              const SamplingParams& sampling) {
  texts_[slot] = std::move(prompt);
  is_new_[slot] = true;
  joins_.push_back(JoinOf(SlotId(slot), {}, texts_[slot].size(), sampling));
  const int num_groups = static_cast<int>(runner_->shape().groups.size());
  const int max_blocks = runner_->shape().max_blocks();
  for (int group = 0; group < num_groups; ++group) {
    for (int column = 0; column < max_blocks; ++column) {
      updates_.push_back({.slot = SlotId(slot),
                          .column = column,
                          .block = BlockId(1 + (slot * num_groups + group) * max_blocks + column),
                          .group = group});
    }
  }
}

void SpeculationHarness::JoinWith(const LogitsRequest& request, std::vector<int32_t> prompt) {
  Join(request.slot.value(), std::move(prompt));
  requests_.push_back(request);
}

void SpeculationHarness::Leave(int slot) { leaves_.push_back(SlotId(slot)); }

absl::Status SpeculationHarness::Launch(const std::vector<SpeculationRow>& rows) {
  std::vector<ScheduledRow> scheduled;
  Launched launched;
  for (const SpeculationRow& row : rows) {
    ScheduledRow& next = scheduled.emplace_back();
    next.slot = SlotId(row.slot);
    next.num_drafts = row.drafts.empty() ? row.num_drafts : 0;
    next.drafts = row.drafts;
    next.parents = row.parents;
    if (is_new_[row.slot]) next.tokens = texts_[row.slot];
    launched.slots.push_back(row.slot);
  }
  REPRISE_ASSIGN_OR_RETURN(launched.ticket, runner_->Launch({.leaves = leaves_,
                                                             .joins = joins_,
                                                             .logits_requests = requests_,
                                                             .updates = updates_,
                                                             .rows = scheduled}));
  for (const SpeculationRow& row : rows) is_new_[row.slot] = false;
  leaves_.clear();
  joins_.clear();
  requests_.clear();
  updates_.clear();
  launched_.push_back(std::move(launched));
  return absl::OkStatus();
}

absl::Status SpeculationHarness::Await() {
  const Launched launched = std::move(launched_.front());
  launched_.pop_front();
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(launched.ticket));
  decision_ = result.decision;
  num_new_.clear();
  for (size_t row = 0; row < launched.slots.size(); ++row) {
    const absl::Span<const int32_t> tokens = result.NewTokens(static_cast<int>(row));
    if (tokens.empty() || tokens.back() != result.tokens[row]) {
      return absl::InternalError("a row's newest token is not the last of its new ones");
    }
    std::vector<int32_t>& text = texts_[launched.slots[row]];
    text.insert(text.end(), tokens.begin(), tokens.end());
    num_new_.push_back(static_cast<int>(tokens.size()));
  }
  return absl::OkStatus();
}

absl::Status SpeculationHarness::Step(const std::vector<SpeculationRow>& rows) {
  REPRISE_RETURN_IF_ERROR(Launch(rows));
  return Await();
}

}  // namespace reprise
