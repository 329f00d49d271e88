#include "reprise/runner/step_builder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/sampling_check.h"

namespace reprise {

absl::StatusOr<StepBuilder> StepBuilder::Create(StepRunner& runner,
                                                const StepBuilderOptions& options) {
  if (options.max_chunk < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_chunk must not be negative: expected 0 or more, got ", options.max_chunk));
  }
  REPRISE_ASSIGN_OR_RETURN(BlockManager blocks,
                           BlockManager::Create(BlockOptionsOf(runner.shape(), options.prefix_reuse,
                                                               options.partial_hits)));
  return StepBuilder(runner, options, std::move(blocks));
}

StepBuilder::StepBuilder(StepRunner& runner, const StepBuilderOptions& options, BlockManager blocks)
    : runner_(&runner),
      blocks_(std::move(blocks)),
      sequences_(runner.shape().max_num_seqs),
      steps_(runner.shape().max_steps_in_flight) {
  const RunnerShape& shape = runner.shape();
  max_chunk_ = options.max_chunk == 0 ? shape.max_num_tokens
                                      : std::min(options.max_chunk, shape.max_num_tokens);
  limits_ =
      LengthLimitsOf(blocks_, shape.max_seq_len, max_chunk_ * (shape.max_steps_in_flight + 1));
  for (int slot = shape.max_num_seqs - 1; slot >= 0; --slot) free_slots_.emplace_back(slot);
  running_.reserve(sequences_.size());
  failed_.reserve(sequences_.size());
  leaves_.reserve(sequences_.size());
  joins_.reserve(sequences_.size());
  updates_.reserve(sequences_.size() * shape.groups.size());
  rows_.reserve(sequences_.size());
  appends_.reserve(sequences_.size());
  new_tokens_.reserve(sequences_.size());
  for (Step& step : steps_) step.rows.reserve(sequences_.size());
}

// ---- Sequences.

bool StepBuilder::contains(SlotId slot) const {
  return slot.value() >= 0 && static_cast<size_t>(slot.value()) < sequences_.size() &&
         sequence(slot).id != 0;
}

absl::Span<const int32_t> StepBuilder::tokens(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " has no sequence";
  return sequence(slot).tokens;
}

int StepBuilder::num_cached_tokens(SlotId slot) const {
  CHECK(contains(slot)) << "slot " << slot << " has no sequence";
  return sequence(slot).num_cached;
}

absl::Status StepBuilder::CheckTaken(SlotId slot) const {
  if (contains(slot)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("slot ", slot.value(), " must have a sequence"));
}

absl::Status StepBuilder::CheckLive(SlotId slot) const {
  REPRISE_RETURN_IF_ERROR(CheckTaken(slot));
  if (sequence(slot).has_failed) {
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", slot.value(), " must leave: its sequence has failed"));
  }
  return absl::OkStatus();
}

absl::Status StepBuilder::CheckPrompt(absl::Span<const int32_t> prompt) const {
  if (prompt.empty()) return absl::InvalidArgumentError("prompt must not be empty");
  if (prompt.size() > static_cast<size_t>(max_length())) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt must fit max_length(): expected at most ", max_length(),
                     " tokens, got ", prompt.size()));
  }
  return runner_->CheckTokens("prompt", prompt);
}

absl::Status StepBuilder::CheckOptions(const JoinOptions& options) const {
  REPRISE_RETURN_IF_ERROR(CheckSampling(options.sampling));
  if (!options.logits.has_value()) return absl::OkStatus();
  return runner_->CheckLogits(*options.logits);
}

absl::StatusOr<SlotId> StepBuilder::FreeSlot() const {
  if (!free_slots_.empty()) return free_slots_.back();
  return absl::ResourceExhaustedError(
      absl::StrCat("a sequence requires a free slot: all ", sequences_.size(), " are taken"));
}

absl::StatusOr<SlotId> StepBuilder::Join(absl::Span<const int32_t> prompt,
                                         const JoinOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckPrompt(prompt));
  REPRISE_RETURN_IF_ERROR(CheckOptions(options));
  REPRISE_ASSIGN_OR_RETURN(const SlotId slot, FreeSlot());
  // Allocates blocks for the whole prompt: with blocks for only the first chunk, the prompt could
  // run out of blocks later. With windows, the whole prompt may need more blocks than the pool has,
  // so only the first chunk gets blocks.
  SequencePrompt added = {.tokens = prompt, .extra_keys = options.extra_keys};
  if (limits_.has_windows) added.num_new_tokens = max_chunk_;
  REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, blocks_.Add(slot, added));
  Start(slot, prompt, static_cast<int>(prompt.size()), hits.num_tokens, options);
  return slot;
}

absl::StatusOr<SlotId> StepBuilder::Fork(SlotId from, const JoinOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckLive(from));
  REPRISE_RETURN_IF_ERROR(CheckOptions(options));
  if (!options.extra_keys.empty()) {
    return absl::InvalidArgumentError("extra_keys must be empty for a fork");
  }
  const Sequence& parent = sequence(from);
  if (parent.tokens.size() > static_cast<size_t>(max_length())) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot ", from.value(), " must not be complete: expected at most ",
                     max_length(), " tokens, got ", parent.tokens.size()));
  }
  REPRISE_ASSIGN_OR_RETURN(const SlotId slot, FreeSlot());
  REPRISE_RETURN_IF_ERROR(blocks_.Fork(from, slot));
  Start(slot, parent.tokens, parent.num_prompt, blocks_.num_committed(slot), options);
  sequence(slot).num_drawn = parent.num_drawn;
  return slot;
}

void StepBuilder::Start(SlotId slot, absl::Span<const int32_t> tokens, int num_prompt,
                        int num_cached, const JoinOptions& options) {
  free_slots_.pop_back();
  running_.push_back(slot);
  Sequence& started = sequence(slot);
  started.tokens.reserve(static_cast<size_t>(max_length()) + 1);
  started.tokens.assign(tokens.begin(), tokens.end());
  started.num_prompt = num_prompt;
  started.num_cached = num_cached;
  started.given_end = static_cast<int>(tokens.size());
  started.num_fed = num_cached;
  started.id = ++num_joins_;
  started.sampling = options.sampling;
  started.logits = options.logits;
  if (options.logits.has_value()) {
    started.biases.assign(options.logits->biases.begin(), options.logits->biases.end());
  }
}

absl::Status StepBuilder::Append(SlotId slot, absl::Span<const int32_t> tokens) {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  REPRISE_RETURN_IF_ERROR(runner_->CheckTokens("tokens", tokens));
  Sequence& grown = sequence(slot);
  const size_t num_tokens =
      grown.tokens.size() + grown.num_pending + grown.appended.size() + tokens.size();
  if (!tokens.empty() && num_tokens > static_cast<size_t>(max_length())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens of slot ", slot.value(), " must fit max_length(): expected at most ",
                     max_length(), " tokens in all, got ", num_tokens));
  }
  grown.is_paused = false;
  grown.appended.insert(grown.appended.end(), tokens.begin(), tokens.end());
  TakeAppended(grown);
  return absl::OkStatus();
}

// Adds appended tokens when no sampled token of the sequence is pending. Later rows pass them from
// the host, like the tokens of a prompt.
void StepBuilder::TakeAppended(Sequence& sequence) {
  if (sequence.num_pending > 0 || sequence.appended.empty()) return;
  sequence.tokens.insert(sequence.tokens.end(), sequence.appended.begin(), sequence.appended.end());
  sequence.appended.clear();
  sequence.given_end = static_cast<int>(sequence.tokens.size());
}

absl::Status StepBuilder::Pause(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckLive(slot));
  sequence(slot).is_paused = true;
  return absl::OkStatus();
}

absl::Status StepBuilder::Leave(SlotId slot) {
  REPRISE_RETURN_IF_ERROR(CheckTaken(slot));
  REPRISE_RETURN_IF_ERROR(blocks_.Free(slot));
  Sequence& left = sequence(slot);
  if (left.has_joined) leaves_.push_back(slot);
  if (left.has_failed) failed_.erase(absl::c_find(failed_, slot));
  // Updates of a batch that the runner rejected.
  std::erase_if(updates_, [&](const BlockTableUpdate& u) { return u.slot == slot; });
  running_.erase(absl::c_find(running_, slot));
  free_slots_.push_back(slot);
  std::vector<int32_t> tokens = std::move(left.tokens);  // keeps its memory
  tokens.clear();
  left = {};
  left.tokens = std::move(tokens);
  return absl::OkStatus();
}

void StepBuilder::LeaveFailed() {
  while (!failed_.empty()) CHECK(Leave(failed_.back()).ok());
}

void StepBuilder::Fail(SlotId slot) {
  if (std::exchange(sequence(slot).has_failed, true)) return;
  failed_.push_back(slot);
}

// ---- Steps.

bool StepBuilder::CanCompute(const Sequence& sequence) const {
  return !sequence.has_failed && !sequence.is_paused && sequence.appended.empty() &&
         sequence.num_fed < max_length();
}

void StepBuilder::AddRow(SlotId slot, int num_tokens, Step& step) {
  const Sequence& fed = sequence(slot);
  const int end = fed.num_fed + num_tokens;
  const bool samples = end >= fed.given_end;
  ScheduledRow& row = rows_.emplace_back();
  row.slot = slot;
  if (!fed.is_decoding()) {
    row.tokens = absl::MakeConstSpan(fed.tokens).subspan(fed.num_fed, num_tokens);
    if (!samples) row.output = RowOutput::kNone;
  }
  step.rows.push_back({.slot = slot,
                       .id = fed.id,
                       .first = fed.num_fed,
                       .num_tokens = num_tokens,
                       .samples = samples});
  const int num_missing = end - blocks_.num_tokens(slot);
  if (num_missing > 0) appends_.push_back({.slot = slot, .num_tokens = num_missing});
}

void StepBuilder::PlanRows(Step& step) {
  rows_.clear();
  appends_.clear();
  step.rows.clear();
  int budget = runner_->shape().max_num_tokens;  // at least one token per slot
  for (const SlotId slot : running_) {
    if (!sequence(slot).is_decoding() || !CanCompute(sequence(slot))) continue;
    AddRow(slot, 1, step);
    --budget;
  }
  for (const SlotId slot : running_) {
    const Sequence& fed = sequence(slot);
    if (budget == 0) break;
    if (fed.is_decoding() || !CanCompute(fed)) continue;
    const int chunk = std::min({fed.given_end - fed.num_fed, max_chunk_, budget});
    AddRow(slot, chunk, step);
    budget -= chunk;
  }
}

// All sequences that the runner does not know yet join, even without a row, because the batch has
// their updates.
void StepBuilder::AddJoins() {
  joins_.clear();
  requests_.clear();
  for (const SlotId slot : running_) {
    Sequence& joining = sequence(slot);
    if (joining.has_joined) continue;
    const absl::Span<const int32_t> tokens = joining.tokens;
    SlotJoin& join = joins_.emplace_back(
        JoinOf(slot, {.num_tokens = joining.num_fed}, tokens.size(), joining.sampling));
    join.sample_index = joining.num_drawn;
    if (!joining.logits.has_value()) continue;
    LogitsRequest& request = requests_.emplace_back(*joining.logits);
    request.slot = slot;
    request.biases = joining.biases;
    request.prompt = tokens.first(joining.num_prompt);
    request.output = tokens.subspan(joining.num_prompt);
  }
}

absl::StatusOr<bool> StepBuilder::Launch() {
  if (num_in_flight_ == static_cast<int>(steps_.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Launch() requires a free step: ", num_in_flight_, " steps are already in flight"));
  }
  Step& step = steps_[(first_step_ + num_in_flight_) % steps_.size()];
  PlanRows(step);
  if (rows_.empty()) return false;
  REPRISE_RETURN_IF_ERROR(blocks_.AppendBatch(appends_));
  const absl::Span<const BlockTableUpdate> updates = blocks_.TakeUpdates();
  updates_.insert(updates_.end(), updates.begin(), updates.end());
  const absl::Span<const BlockCopy> copies = blocks_.TakeCopies();
  copies_.assign(copies.begin(), copies.end());
  AddJoins();
  const absl::StatusOr<int64_t> number = runner_->Launch({.leaves = leaves_,
                                                          .joins = joins_,
                                                          .logits_requests = requests_,
                                                          .updates = updates_,
                                                          .copies = copies_,
                                                          .rows = rows_});
  if (!number.ok()) {
    Refused();
    return number.status();
  }
  step.number = *number;
  ++num_in_flight_;
  for (const SlotJoin& join : joins_) sequence(join.slot).has_joined = true;
  for (const Row& row : step.rows) {
    Sequence& fed = sequence(row.slot);
    fed.num_fed += row.num_tokens;
    if (row.samples) ++fed.num_pending;
  }
  leaves_.clear();
  updates_.clear();
  return true;
}

// BlockManager does not return these copies again, and their sources may hold other keys by the
// next launch.
void StepBuilder::Refused() {
  for (const BlockCopy& copy : copies_) {
    for (const SlotId slot : running_) {
      for (int group = 0; group < blocks_.num_groups(); ++group) {
        if (absl::c_linear_search(blocks_.blocks(slot, group), BlockId(copy.dst))) Fail(slot);
      }
    }
  }
}

bool StepBuilder::IsLive(const Row& row) const {
  return sequence(row.slot).id == row.id && !sequence(row.slot).has_failed;
}

absl::StatusOr<absl::Span<const NewToken>> StepBuilder::Await() {
  if (num_in_flight_ == 0) {
    return absl::FailedPreconditionError("Await() requires a step in flight");
  }
  const Step& step = steps_[first_step_];
  first_step_ = (first_step_ + 1) % static_cast<int>(steps_.size());
  --num_in_flight_;
  new_tokens_.clear();
  const absl::StatusOr<StepResult> result = runner_->Await(step.number);
  if (!result.ok()) {
    for (const Row& row : step.rows) {
      if (IsLive(row)) Fail(row.slot);
    }
    return result.status();
  }
  result_ = *result;
  for (size_t r = 0; r < step.rows.size(); ++r) {
    if (!IsLive(step.rows[r])) continue;
    REPRISE_RETURN_IF_ERROR(Complete(step.rows[r], static_cast<int>(r), result->tokens[r]));
  }
  return new_tokens_;
}

absl::Status StepBuilder::Complete(const Row& row, int row_index, int32_t token) {
  Sequence& fed = sequence(row.slot);
  REPRISE_RETURN_IF_ERROR(
      blocks_.Commit(row.slot, absl::MakeConstSpan(fed.tokens).subspan(row.first, row.num_tokens)));
  if (!row.samples) return absl::OkStatus();
  --fed.num_pending;
  NewToken& next = new_tokens_.emplace_back();
  next = {.slot = row.slot, .token = token, .row = row_index};
  if (token < 0) {
    next.is_last = true;
    Fail(row.slot);
    return blocks_.ForgetContent(row.slot);  // its keys may also be NaN
  }
  next.is_last = row.first + row.num_tokens == max_length();
  fed.tokens.push_back(token);
  ++fed.num_drawn;
  TakeAppended(fed);
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const NewToken>> StepBuilder::Run() {
  while (num_in_flight_ < static_cast<int>(steps_.size())) {
    const absl::StatusOr<bool> launched = Launch();
    // A step in flight may release what the launch needs, and its tokens must not be lost.
    if (!launched.ok() && num_in_flight_ == 0) return launched.status();
    if (!launched.ok() || !*launched) break;
  }
  if (num_in_flight_ == 0) {
    new_tokens_.clear();
    return new_tokens_;
  }
  return Await();
}

}  // namespace reprise
