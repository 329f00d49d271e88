#include "runner/model_runner.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "cache/ops/copy_blocks.h"

namespace reprise {
namespace {

// Whether a step may have failed on this rank only, for want of memory for example: others then wait
// for it in the step's collectives. What is wrong with a batch, all ranks find.
bool MayFailAlone(const absl::Status& failure) {
  return !absl::IsInvalidArgument(failure) && !absl::IsFailedPrecondition(failure) &&
         !absl::IsUnimplemented(failure);
}

}  // namespace

absl::StatusOr<StepTicket> ModelRunner::Launch(const ScheduledBatch& batch) {
  const StepTrace::Span launch(options_.trace, "launch", num_launched_);
  std::optional<StepTrace::Span> plan(std::in_place, options_.trace, "plan", num_launched_);
  if (!status_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the runner has failed and can run no more steps: ", std::string(status_.message())));
  }
  if (num_launched_ - num_awaited_ >= max_steps_in_flight()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the oldest step must be awaited before another is launched: expected fewer ", "than ",
        max_steps_in_flight(), " in flight, got ", num_launched_ - num_awaited_));
  }
  const LogitsBatch logits = LogitsBatchOf(batch);
  REPRISE_RETURN_IF_ERROR(CheckLogits(batch, logits));
  REPRISE_ASSIGN_OR_RETURN(StepDemand demand, mirror_->Advance(batch));
  // The batch is accepted. What fails from here on fails the step, and Await() returns it.
  if (shards_ != nullptr) shards_->Plan(batch);
  StepCascade::Decision cascade;
  if (cascade_) cascade = cascade_->Decide(batch, *mirror_);
  demand.shape.cascade = cascade.rule.use();
  if (batch.rows.empty() && batch.idle == IdleStep::kRunModel) {
    demand.shape = {.num_seqs = 1, .num_tokens = 1, .max_query_len = 1, .max_seq_len = 1};
  }
  Output& output = outputs_[num_launched_ % outputs_.size()];
  output.decision = graphs_->Decide(demand.shape);
  output.num_rows = static_cast<int>(batch.rows.size());
  output.num_earlier_logits = demand.shape.num_earlier_logits;
  output.has_drafts = demand.shape.num_drafts > 0;
  output.unsettled.assign(mirror_->unsettled_rows().begin(), mirror_->unsettled_rows().end());
  const int common_prefix_len = output.decision.key.cascade ? cascade.common_prefix_len : 0;
  plan.reset();
  if (options_.trace != nullptr) options_.trace->AddCounts(demand.shape, output.decision.key);
  if (device_spans_ != nullptr) device_spans_->Begin(IndexOf(num_launched_));
  output.status = Prepare(batch, logits, demand.shape, common_prefix_len, output);
  if (!output.status.ok()) {
    status_ = output.status;  // the slots on the device are no longer those of the mirror
  } else {
    output.status = Compute(batch, demand, output);
    if (!output.status.ok()) {
      status_ = driver_->Health();
      if (MayFailAlone(output.status)) TellOthers(output.status);
    }
  }
  output.written->Arm();
  return StepTicket{num_launched_++};
}

LogitsBatch ModelRunner::LogitsBatchOf(const ScheduledBatch& batch) {
  sample_slot_.clear();
  scored_slots_.clear();
  masks_.clear();
  for (const ScheduledRow& row : batch.rows) {
    if (!row.allowed_tokens.empty()) {
      masks_.push_back({.row = static_cast<int>(sample_slot_.size()), .mask = row.allowed_tokens});
    }
    sample_slot_.push_back(row.output == RowOutput::kToken ? row.slot.value() : kNotSampled);
    if (row.is_scored()) scored_slots_.push_back(row.slot.value());
  }
  return {.leaves = batch.leaves,
          .requests = batch.logits_requests,
          .masks = masks_,
          .sample_slot = sample_slot_,
          .scored_slots = scored_slots_};
}

absl::Status ModelRunner::CheckLogits(const ScheduledBatch& batch,
                                      const LogitsBatch& logits) const {
  for (const ScheduledRow& row : batch.rows) {
    if (row.draft_count() == 0 || !stages_->HasRequest(row.slot, logits)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rows: slot ", row.slot.value(),
                     " has a LogitsRequest, whose stages do not see drafts: expected no drafts, ",
                     "got ", row.draft_count()));
  }
  if (logits.requests.empty() && logits.masks.empty()) return absl::OkStatus();
  for (const LogitsRequest& request : logits.requests) {
    if (absl::c_any_of(batch.joins,
                       [&](const SlotJoin& join) { return join.slot == request.slot.value(); })) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("logits_requests: slot ", request.slot.value(),
                                                   " does not join in this batch"));
  }
  return stages_->Check(logits);
}

absl::Status ModelRunner::Compute(const ScheduledBatch& batch, const StepDemand& demand,
                                  Output& output) {
  if (!batch.encodes.empty()) {
    const StepTrace::Span span(options_.trace, "encode", num_launched_);
    REPRISE_RETURN_IF_ERROR(encoder_->Run(batch.encodes, *model_, kv_layers()));
    EndPart(DevicePart::kEncode);
  }
  if (!batch.embeddings.empty()) {
    REPRISE_RETURN_IF_ERROR(driver_->OnStream([&] { return embeddings_->Write(batch); }));
  } else if (output.decision.key.input == StepInput::kEmbeddings) {
    REPRISE_RETURN_IF_ERROR(driver_->OnStream([&] { return embeddings_->Clear(); }));
  }
  if (demand.shape.num_seqs > 0) {
    REPRISE_ASSIGN_OR_RETURN(output.decision, RunStep(output.decision, demand.shape));
    EndPart(DevicePart::kForward);
    const StepTrace::Span span(options_.trace, "sample", num_launched_);
    const GraphKey& key = output.decision.key;
    if (LeavesLogits(key) && !SamplesShards(output)) {
      const int num_logits = key.padded_num_seqs + key.num_earlier_logits;
      REPRISE_RETURN_IF_ERROR(driver_->OnStream(
          [&] { return shards_->Gather(num_logits, memory_->logits(num_logits)); }));
    }
    REPRISE_RETURN_IF_ERROR(KeepLogits(output));
    REPRISE_RETURN_IF_ERROR(ChooseTokens(demand, output));
    REPRISE_RETURN_IF_ERROR(ScoreTokens(output));
    EndPart(DevicePart::kSample);
  }
  graphs_->Count(output.decision, demand.shape);
  return absl::OkStatus();
}

absl::Status ModelRunner::KeepLogits(const Output& output) {
  if (output.logits.empty()) return absl::OkStatus();
  return driver_->OnStream([&] {
    return CatchTorch([&] {
      output.logits[output.num_rows].copy_(memory_->logits(output.num_rows));
      if (output.num_earlier_logits > 0) {
        output.earlier_logits.narrow(0, 0, output.num_earlier_logits)
            .copy_(memory_->logits().narrow(0, output.decision.key.padded_num_seqs,
                                            output.num_earlier_logits));
      }
      return absl::OkStatus();
    });
  });
}

absl::Status ModelRunner::ChooseTokens(const StepDemand& demand, const Output& output) {
  const LogitsStep step = {.logits = memory_->logits(output.decision.key.padded_num_seqs),
                           .slots = memory_->slots().sampling_slots(),
                           .sample_slot = memory_->arrays().sample_slot};
  if (stages_->is_needed()) {
    REPRISE_RETURN_IF_ERROR(driver_->OnStream([&] { return stages_->BeforeSample(step); }));
  }
  REPRISE_RETURN_IF_ERROR(Sample(step, demand, output));
  if (!stages_->is_needed()) return absl::OkStatus();
  return driver_->OnStream([&] { return stages_->AfterSample(step, IndexOf(num_launched_)); });
}

bool ModelRunner::SamplesShards(const Output& output) const {
  const bool are_read = !output.logits.empty() || output.num_earlier_logits > 0 ||
                        max_steps_in_flight() == 1;  // by the caller
  return LeavesLogits(output.decision.key) && shards_->serves() && !are_read &&
         !stages_->is_needed() && !stages_->scores();
}

absl::Status ModelRunner::Sample(const LogitsStep& step, const StepDemand& demand,
                                 const Output& output) {
  if (SamplesShards(output)) {
    const GraphKey& key = output.decision.key;
    const ShardSampleArgs args = {.num_logits = key.padded_num_seqs + key.num_earlier_logits,
                                  .num_rows = key.padded_num_seqs,
                                  .slots = step.slots,
                                  .sample_slot = step.sample_slot,
                                  .out = output.device_tokens};
    return driver_->OnStream([&] { return shards_->Sample(args); });
  }
  const SampleArgs args = {.logits = step.logits,
                           .slots = step.slots,
                           .sample_slot = step.sample_slot,
                           .out = output.device_tokens,
                           .features = demand.features};
  if (!output.has_drafts) return driver_->Sample(args);
  if (output.is_verified_in_graph) return absl::OkStatus();
  return driver_->OnStream([&] {
    return verification_->Run(output.decision.key, ResultsOf(output.device_tokens),
                              demand.features);
  });
}

bool ModelRunner::VerifiesInGraph(const Output& output) const {
  const GraphDecision& decision = output.decision;
  return output.has_drafts && decision.kind == GraphDecision::Kind::kReplay &&
         graphs_->is_captured(decision.key) && !calibrates_ && checker_ == nullptr &&
         !stages_->is_needed();
}

VerifiedOutput ModelRunner::ResultsOf(int32_t* device_tokens) const {
  int32_t* num_new = device_tokens + options_.max_num_seqs + 1;
  return {.tokens = device_tokens,
          .num_new = num_new,
          .new_tokens = num_new + options_.max_num_seqs,
          .place_tokens = place_tokens()};
}

void ModelRunner::Settle(const Output& output) {
  const int32_t* num_new = output.tokens + options_.max_num_seqs + 1;
  for (const UnsettledRow& row : output.unsettled) {
    mirror_->Settle(row, std::max(num_new[row.row], 1));
  }
}

absl::Status ModelRunner::ScoreTokens(const Output& output) {
  if (!stages_->scores()) return absl::OkStatus();
  const GraphKey& key = output.decision.key;
  return driver_->OnStream([&] {
    return stages_->Score({.logits = memory_->logits(key.padded_num_seqs + key.num_earlier_logits),
                           .slot = memory_->arrays().scored_slot,
                           .token = memory_->arrays().scored_token},
                          IndexOf(num_launched_));
  });
}

absl::Status ModelRunner::MoveBlocks(const ScheduledBatch& batch) {
  if (batch.swap_outs.empty() && batch.swap_ins.empty() && batch.copies.empty()) {
    return absl::OkStatus();
  }
  // On the stream of the steps: after all that were launched, before this one.
  return driver_->OnStream([&]() -> absl::Status {
    if (!batch.swap_outs.empty()) {
      REPRISE_RETURN_IF_ERROR(CopyBlocks(*block_store_, *swap_store_, batch.swap_outs));
    }
    if (!batch.swap_ins.empty()) {
      REPRISE_RETURN_IF_ERROR(CopyBlocks(*swap_store_, *block_store_, batch.swap_ins));
    }
    return CopyBlocks(*block_store_, *block_store_, batch.copies);
  });
}

absl::Status ModelRunner::Refill(const ScheduledBatch& batch, const StepShape& shape,
                                 const GraphKey& key, int common_prefix_len, const Output& output) {
  StagingSlot slot = delta_ring_->Acquire();
  WriteStepDelta(batch, common_prefix_len, delta_capacity_,
                 StepDeltaAt(delta_capacity_, slot.bytes().data()));
  RefillArgs args{.delta = StepDeltaAt(delta_capacity_,
                                       delta_memory_->device<std::byte>() + slot.offset_bytes()),
                  .slots = memory_->slots(),
                  .arrays = memory_->arrays(),
                  .padded_num_rows = key.padded_num_seqs,
                  .padded_num_tokens = key.padded_num_tokens,
                  .padded_num_earlier_logits = key.num_earlier_logits,
                  .has_scored_rows = !scored_slots_.empty() || output.has_drafts,
                  .has_drafts = output.has_drafts,
                  .tree = trees_ == nullptr ? nullptr : trees_->tree(),
                  .tree_size = trees_ == nullptr ? 0 : trees_->tree_size(),
                  .output = output.is_verified_in_graph ? 1 + IndexOf(num_launched_) : 0,
                  .place_tokens = place_tokens(),
                  .runs_draft_model = RunsDraftModel(key, shape.has_given_tokens),
                  .block_size = options_.block_size,
                  .num_blocks = num_blocks_};
  absl::c_copy(classes_.groups, args.groups);
  args.arrays.num_faults = output.device_tokens + options_.max_num_seqs;
  return driver_->Refill(args);
}

absl::StatusOr<GraphDecision> ModelRunner::RunStep(const GraphDecision& decision,
                                                   const StepShape& shape) {
  StepTrace::Span span(options_.trace, "forward", num_launched_);
  GraphDecision outcome = decision;
  const bool runs_draft_model = RunsDraftModel(decision.key, shape.has_given_tokens);
  if (calibrates_) {
    outcome.kind = GraphDecision::Kind::kEager;
    outcome.reason = EagerReason::kCalibrates;
    REPRISE_RETURN_IF_ERROR(driver_->OnStream(MakeStep(
        decision.key, {.calibrated = &*kv_scales_, .runs_draft_model = runs_draft_model})));
    calibrates_ = false;
  } else if (decision.kind == GraphDecision::Kind::kReplay) {
    const auto make_step = [this](const GraphKey& key) { return MakeCapturedStep(key); };
    REPRISE_ASSIGN_OR_RETURN(outcome, graphs_->Replay(decision.key, make_step, fingerprint_));
  } else {
    REPRISE_RETURN_IF_ERROR(
        driver_->OnStream(MakeStep(decision.key, {.runs_draft_model = runs_draft_model})));
  }
  if (checker_ != nullptr && outcome.kind == GraphDecision::Kind::kReplay) {
    REPRISE_RETURN_IF_ERROR(CheckReplay(outcome.key, shape));
  }
  span.SetDecision(outcome);
  return outcome;
}

absl::Status ModelRunner::CheckReplay(const GraphKey& key, const StepShape& shape) {
  // Keys are written again, to the same slots.
  ReplayComparison comparison = checker_->Compare(key, shape);
  return driver_->OnStream(MakeStep(key, {.watch = &comparison, .proposes_drafts = false}));
}

absl::StatusOr<StepResult> ModelRunner::Await(StepTicket ticket) {
  if (num_awaited_ == num_launched_ || ticket.step != num_awaited_) {
    return absl::FailedPreconditionError(
        absl::StrCat("steps are awaited once, in the order of their launch: expected ",
                     num_awaited_ == num_launched_ ? "none" : absl::StrCat("step ", num_awaited_),
                     ", got step ", ticket.step));
  }
  const StepTrace::Span span(options_.trace, "await", ticket.step);
  const int output_idx = IndexOf(num_awaited_++);
  const Output& output = outputs_[output_idx];
  // After a fault of the device the tokens in the ring are those of an earlier step.
  const absl::Status written = output.written->Wait();
  if (device_spans_ != nullptr) device_spans_->Collect(output_idx, ticket.step, output.decision);
  status_.Update(written);
  REPRISE_RETURN_IF_ERROR(output.status);
  REPRISE_RETURN_IF_ERROR(written);
  const int32_t num_faults = output.tokens[options_.max_num_seqs];
  if (num_faults != 0) {
    return absl::InternalError(absl::StrCat("step ", ticket.step, ": the device refused ",
                                            num_faults, " parts of the batch"));
  }
  if (output.has_drafts) Settle(output);
  StepResult result = {.tokens = absl::MakeConstSpan(output.tokens, output.num_rows),
                       .logits = LogitsOf(output),
                       .log_probs = {},
                       .earlier_logits = EarlierLogitsOf(output),
                       .decision = output.decision};
  if (output.has_drafts) {
    const int32_t* num_new = output.tokens + options_.max_num_seqs + 1;
    result.num_new_tokens = absl::MakeConstSpan(num_new, output.num_rows);
    result.new_tokens =
        absl::MakeConstSpan(num_new + options_.max_num_seqs, output.num_rows * (1 + max_drafts()));
  }
  if (options_.logits.max_log_probs >= 0) {
    const RowLogProbsView log_probs = stages_->log_probs(output_idx);
    result.log_probs = log_probs.Rows(0, output.num_rows);
    result.earlier_log_probs =
        log_probs.Rows(output.decision.key.padded_num_seqs, output.num_earlier_logits);
  }
  return result;
}

at::Tensor ModelRunner::LogitsOf(const Output& output) const {
  if (!output.logits.empty()) return output.logits[output.num_rows];
  return max_steps_in_flight() == 1 ? memory_->logits(output.num_rows) : at::Tensor();
}

at::Tensor ModelRunner::EarlierLogitsOf(const Output& output) const {
  const int64_t count = output.num_earlier_logits;
  if (count == 0) return at::Tensor();
  if (output.earlier_logits.defined()) return output.earlier_logits.narrow(0, 0, count);
  if (max_steps_in_flight() > 1) return at::Tensor();
  return memory_->logits().narrow(0, output.decision.key.padded_num_seqs, count);
}

absl::StatusOr<StepResult> ModelRunner::Step(const ScheduledBatch& batch) {
  REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, Launch(batch));
  return Await(ticket);
}

absl::Span<const int32_t> StepResult::NewTokens(int row) const {
  if (num_new_tokens.empty()) {
    return tokens[row] < 0 ? absl::Span<const int32_t>() : tokens.subspan(row, 1);
  }
  const size_t stride = new_tokens.size() / num_new_tokens.size();
  return new_tokens.subspan(row * stride, num_new_tokens[row]);
}

absl::Status ModelRunner::CheckEmbeddings(std::string_view argument,
                                          const EmbeddingRows& rows) const {
  return CheckEmbeddingRows(argument, rows, embedding_format());
}

absl::Status ModelRunner::CheckTokens(std::string_view argument,
                                      absl::Span<const int32_t> tokens) const {
  const int vocab_size = spec_.vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(argument), " must hold ids in [0, ",
                                                   vocab_size, "): got ", tokens[i], " at index ",
                                                   i));
  }
  return absl::OkStatus();
}

}  // namespace reprise
