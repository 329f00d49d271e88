#include "reprise/runner/sampling/logits_stages.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

constexpr int kMaxUserStages = 30;

absl::Status Refusal(const LogitsRequest& request, const absl::Status& status) {
  return absl::InvalidArgumentError(
      absl::StrCat("requests: slot ", request.slot.value(), ": ", std::string(status.message())));
}

bool UsesProcessors(const LogitsParams& params) {
  return HasPenalties(params) || params.num_biases > 0;
}

}  // namespace

LogitsStages::LogitsStages(const LogitsStagesOptions& options)
    : options_(options), slots_(options.num_slots) {}

absl::StatusOr<std::unique_ptr<LogitsStages>> LogitsStages::Create(
    const LogitsStagesOptions& options, const LogitsStagesMemory& memory) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", options.num_slots, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_rows", options.max_rows, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_earlier_logits", options.max_earlier_logits, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("vocab_size", options.vocab_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", options.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_steps_in_flight", options.max_steps_in_flight, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("logits.max_biases", options.logits.max_biases, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("logits.max_log_probs", options.logits.max_log_probs, -1, kMaxTopLogProbs));
  REPRISE_RETURN_IF_ERROR(CheckBetween(
      "logits.stages", static_cast<int64_t>(options.logits.stages.size()), 0, kMaxUserStages));
  for (const LogitsStage* stage : options.logits.stages) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("logits.stages", stage));
  }
  auto stages = std::unique_ptr<LogitsStages>(new LogitsStages(options));
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return stages->Allocate(memory); }));
  return stages;
}

absl::Status LogitsStages::Allocate(const LogitsStagesMemory& memory) {
  joins_.reserve(2 * slots_.size());
  selected_.reserve(2 + options_.logits.stages.size());
  REPRISE_ASSIGN_OR_RETURN(states_, LogitsSlotStates::Create(options_, memory));
  if (HasProcessors(options_.logits)) {
    REPRISE_ASSIGN_OR_RETURN(processors_,
                             ProcessorsStage::Create(options_, states_->slots(), memory));
  }
  if (options_.logits.max_log_probs >= 0) {
    REPRISE_ASSIGN_OR_RETURN(log_probs_, LogProbsStage::Create(options_, states_->slots(), memory));
  }
  return absl::OkStatus();
}

absl::Status LogitsStages::CheckRequest(const LogitsRequest& request) const {
  const LogitsOptions& logits = options_.logits;
  const LogitsParams& params = request.params;
  LogitsParams with_biases = params;
  with_biases.num_biases = static_cast<int32_t>(request.biases.size());
  REPRISE_RETURN_IF_ERROR(CheckLogitsParams(with_biases, request.biases, options_.vocab_size));
  if (HasPenalties(params) && !logits.penalties) {
    return absl::InvalidArgumentError("penalties: the options do not provide for them");
  }
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("biases", static_cast<int64_t>(request.biases.size()), 0, logits.max_biases));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("num_log_probs", params.num_log_probs, -1, logits.max_log_probs));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("num_known_log_probs", params.num_known_log_probs, -1, logits.max_log_probs));
  if ((uint64_t{request.stages} >> logits.stages.size()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("stages: expected a subset of the options' ",
                                                   logits.stages.size(), " stages, got the set ",
                                                   request.stages));
  }
  if (!HasPenalties(params)) return absl::OkStatus();
  return CheckBetween("prompt and output",
                      static_cast<int64_t>(request.prompt.size() + request.output.size()), 0,
                      options_.max_seq_len);
}

absl::Status LogitsStages::CheckMask(const AllowedTokens& allowed,
                                     absl::Span<const int32_t> sample_slot) const {
  if (!options_.logits.allowed_tokens) {
    return absl::InvalidArgumentError("masks: the options do not provide for them");
  }
  if (allowed.row < 0 || allowed.row >= static_cast<int>(sample_slot.size()) ||
      sample_slot[allowed.row] < 0) {
    return absl::InvalidArgumentError(absl::StrCat("masks: row must be in [0, ", sample_slot.size(),
                                                   ") and sample: got ", allowed.row));
  }
  const int64_t num_words = MaskWords(options_.vocab_size);
  if (static_cast<int64_t>(allowed.mask.size()) == num_words) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("masks: row ", allowed.row, ": expected ",
                                                 num_words, " words, got ", allowed.mask.size()));
}

absl::Status LogitsStages::Check(const LogitsBatch& batch) const {
  const auto check_slot = [&](const char* part, int64_t slot) -> absl::Status {
    if (slot >= 0 && slot < options_.num_slots) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(part, ": slot must be in [0, ", options_.num_slots, "), got ", slot));
  };
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("rows", static_cast<int64_t>(batch.sample_slot.size()), 0, options_.max_rows));
  for (const int32_t slot : batch.sample_slot) {
    if (slot != -1) REPRISE_RETURN_IF_ERROR(check_slot("rows", slot));
  }
  for (const int32_t slot : batch.scored_slots) {
    REPRISE_RETURN_IF_ERROR(check_slot("rows", slot));
  }
  for (const SlotId slot : batch.leaves) {
    REPRISE_RETURN_IF_ERROR(check_slot("leaves", slot.value()));
  }
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const SlotId slot = batch.requests[i].slot;
    REPRISE_RETURN_IF_ERROR(check_slot("requests", slot.value()));
    for (size_t before = 0; before < i; ++before) {
      if (batch.requests[before].slot != slot) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("requests: slot ", slot.value(), " occurs twice"));
    }
    const absl::Status status = CheckRequest(batch.requests[i]);
    if (!status.ok()) return Refusal(batch.requests[i], status);
  }
  for (size_t i = 0; i < batch.masks.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(CheckMask(batch.masks[i], batch.sample_slot));
    for (size_t before = 0; before < i; ++before) {
      if (batch.masks[before].row != batch.masks[i].row) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("masks: row ", batch.masks[i].row, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

void LogitsStages::Plan(const LogitsBatch& batch) {
  Join(batch);
  Select(batch);
}

absl::Status LogitsStages::Begin(const LogitsBatch& batch) {
  REPRISE_RETURN_IF_ERROR(states_->Join(joins_));
  if (processors_ != nullptr) processors_->SetMasks(batch.masks);
  return absl::OkStatus();
}

bool LogitsStages::HasRequest(SlotId slot, const LogitsBatch& batch) const {
  if (slot.value() < 0 || static_cast<size_t>(slot.value()) >= slots_.size()) return false;
  for (const LogitsRequest& request : batch.requests) {
    if (request.slot != slot) continue;
    LogitsParams params = request.params;
    params.num_biases = static_cast<int32_t>(request.biases.size());
    return params != LogitsParams() || request.stages != 0;
  }
  for (const SlotId left : batch.leaves) {
    if (left == slot) return false;
  }
  const Slot& state = slots_[slot.value()];
  return state.params != LogitsParams() || state.stages != 0;
}

void LogitsStages::Join(const LogitsBatch& batch) {
  joins_.clear();
  for (const SlotId slot : batch.leaves) {
    const bool joins_again =
        std::any_of(batch.requests.begin(), batch.requests.end(),
                    [&](const LogitsRequest& request) { return request.slot == slot; });
    const bool is_default = slots_[slot.value()].params == LogitsParams();
    if (!is_default && !joins_again) joins_.push_back({.slot = slot});
    slots_[slot.value()].stages = 0;
    // A slot may leave twice.
    if (!joins_again) slots_[slot.value()].params = LogitsParams();
  }
  for (const LogitsRequest& request : batch.requests) {
    Slot& slot = slots_[request.slot.value()];
    LogitsRequest join = request;
    join.params.num_biases = static_cast<int32_t>(request.biases.size());
    const bool changes = join.params != LogitsParams() || slot.params != LogitsParams();
    slot = {join.params, request.stages};
    if (changes) joins_.push_back(join);
  }
}

void LogitsStages::Select(const LogitsBatch& batch) {
  bool needs_processors = !batch.masks.empty();
  bool needs_log_probs = false;
  LogitsStageSet user_stages = 0;
  for (const int32_t id : batch.sample_slot) {
    if (id < 0) continue;
    const Slot& slot = slots_[id];
    needs_processors |= UsesProcessors(slot.params);
    needs_log_probs |= slot.params.num_log_probs >= 0;
    user_stages |= slot.stages;
  }
  selected_.clear();
  if (needs_log_probs) selected_.push_back(log_probs_.get());
  if (needs_processors) selected_.push_back(processors_.get());
  for (size_t i = 0; i < options_.logits.stages.size(); ++i) {
    if (((user_stages >> i) & 1) != 0) selected_.push_back(options_.logits.stages[i]);
  }
  if (needs_log_probs) log_probs_->set_keeps_raw(selected_.size() > 1);
  scores_ = std::any_of(batch.scored_slots.begin(), batch.scored_slots.end(),
                        [&](int32_t slot) { return slots_[slot].params.num_known_log_probs >= 0; });
}

absl::Status LogitsStages::CheckStep(const LogitsStep& step) const {
  ShapeChecker dims;
  dims.Bind("vocab_size", options_.vocab_size);
  REPRISE_RETURN_IF_ERROR(dims.Check("logits", step.logits, {"num_rows", "vocab_size"},
                                     ToScalarType(options_.logits_dtype)));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("logits", step.logits));
  REPRISE_RETURN_IF_ERROR(CheckBetween("rows", step.logits.size(0), 0, options_.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", step.sample_slot));
  return CheckGiven("last_token", step.slots.last_token);
}

absl::Status LogitsStages::BeforeSample(const LogitsStep& step) {
  if (selected_.empty()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckStep(step));
  for (LogitsStage* stage : selected_) {
    REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return stage->BeforeSample(step); }));
  }
  return absl::OkStatus();
}

absl::Status LogitsStages::AfterSample(const LogitsStep& step, int output) {
  CHECK(output >= 0 && output <= options_.max_steps_in_flight) << output;
  if (log_probs_ != nullptr) log_probs_->set_output(output);
  for (LogitsStage* stage : selected_) {
    REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return stage->AfterSample(step); }));
  }
  return absl::OkStatus();
}

absl::Status LogitsStages::Score(const ScoredLogits& scored, int output) {
  CHECK(log_probs_ != nullptr);
  CHECK(output >= 0 && output <= options_.max_steps_in_flight) << output;
  ShapeChecker dims;
  dims.Bind("vocab_size", options_.vocab_size);
  REPRISE_RETURN_IF_ERROR(dims.Check("logits", scored.logits, {"num_logits", "vocab_size"},
                                     ToScalarType(options_.logits_dtype)));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("logits", scored.logits));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_logits", scored.logits.size(0), 0,
                                       options_.max_rows + options_.max_earlier_logits));
  log_probs_->set_output(output);
  return log_probs_->Score(scored);
}

RowLogProbsView LogitsStages::log_probs(int output) const {
  CHECK(log_probs_ != nullptr);
  CHECK(output >= 0 && output <= options_.max_steps_in_flight) << output;
  return log_probs_->On(output);
}

int64_t LogitsStages::device_bytes() const {
  return states_->device_bytes() + (log_probs_ != nullptr ? log_probs_->device_bytes() : 0);
}

}  // namespace reprise
