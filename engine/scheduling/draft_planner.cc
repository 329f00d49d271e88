#include "reprise/engine/scheduling/draft_planner.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "glog/logging.h"
#include "reprise/cache/kv_group.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/logits_request.h"

namespace reprise {
namespace {

// Returns the draft counts (levels for trees) that steps choose from.
std::vector<int> MeasuredLevels(const DraftCapability& drafts, int most) {
  std::vector<int> levels = drafts.graph_levels;
  for (int level = 1; drafts.graph_levels.empty() && level < most; level *= 2) {
    levels.push_back(level);
  }
  std::erase_if(levels, [&](int level) { return level >= most; });
  if (most > 0) levels.push_back(most);
  return levels;
}

}  // namespace

DraftPlanner::DraftPlanner(const RunnerShape& shape, const SchedulerPolicy& policy,
                           BlockManager* blocks, const CacheLimits* limits)
    : capability_(shape.drafts),
      policy_(*policy.speculation),
      max_earlier_logits_(0),
      blocks_(blocks),
      limits_(limits),
      costs_(MeasuredLevels(shape.drafts, policy.speculation->num_drafts)) {
  max_earlier_logits_ = std::max<int64_t>(
      shape.max_earlier_logits, int64_t{shape.max_num_seqs} * DraftsOf(policy_.num_drafts));
  const absl::Span<const KvGroupSpec> groups = blocks->groups();
  const auto full = absl::c_find_if(
      groups, [](const KvGroupSpec& group) { return group.retention == KvRetention::kFull; });
  if (!has_drafter_keys() || full == groups.end()) return;
  drafted_group_ = static_cast<int>(full - groups.begin());
  drafted_blocks_.emplace(
      DraftedBlocksOptions{.num_blocks = shape.num_blocks, .block_size = shape.block_size});
}

int DraftPlanner::MaxDraftsOf(const Request& request) const {
  if (!request.forced_tokens.empty() || request.new_token_masker) return 0;
  const LogitsRequest logits = ToLogitsRequest(request);
  if (logits.params != LogitsParams() || logits.stages != 0) return 0;
  const int most = policy_.num_drafts;
  return request.max_drafts < 0 ? most : std::min(most, request.max_drafts);
}

int DraftPlanner::Join(SequenceState& sequence, SlotId slot, int num_hits, bool swapped_in) {
  if (swapped_in) {
    sequence.num_drafted = std::min(sequence.num_drafted, num_hits);
    if (drafted_blocks_.has_value()) {
      drafted_blocks_->Set(blocks_->blocks(slot, drafted_group_), {.end = num_hits},
                           sequence.num_drafted);
    }
  } else if (!drafted_blocks_.has_value() || num_hits == 0) {
    sequence.num_drafted = num_hits;
  } else {
    const absl::Span<const BlockId> blocks = blocks_->blocks(slot, drafted_group_);
    // The last block may be a pending copy of another block's leading tokens.
    const BlockId last = blocks[(num_hits - 1) / blocks_->options().block_size];
    drafted_blocks_->Copy(blocks_->OriginOf(last), last);
    sequence.num_drafted = drafted_blocks_->NumSeen(blocks, num_hits);
  }
  return has_drafter_keys() ? num_hits - sequence.num_drafted : 0;
}

void DraftPlanner::AddDrafts(BatchInProgress& batch) {
  if (policy_.num_drafts > 0 && !batch.lacks_blocks()) {
    const int step_levels = StepLevels(batch);
    bool may_grow = true;
    for (int i = 0; i < batch.num_rows(); ++i) {
      const OpenRow& open = batch.open_rows()[i];
      SequenceState& sequence = *open.sequence;
      const int budget = static_cast<int>(
          std::min<int64_t>(batch.tokens_left(), max_earlier_logits_ - batch.num_earlier_logits()));
      const int most = std::min({step_levels, MaxLevels(open, batch.rows()[i]), LevelsOf(budget)});
      if (most <= 0) continue;
      const absl::Span<const int32_t> given = sequence.PredictedDrafts(most);
      if (!given.empty()) {
        const int wanted =
            std::min(NumByAcceptance(sequence, most), static_cast<int>(given.size()));
        const int num_drafts = RoomFor(sequence, wanted, may_grow);
        if (num_drafts > 0) batch.AddDrafts(i, num_drafts, num_drafts, given.first(num_drafts));
        continue;
      }
      const int wanted = DraftsOf(WantedLevels(sequence, most));
      const int num_levels = LevelsOf(RoomFor(sequence, wanted, may_grow));
      if (num_levels > 0) batch.AddDrafts(i, num_levels, DraftsOf(num_levels), {});
    }
  }
  if (!has_drafter_keys()) return;
  // This condition implies SpeculationPart::RunsDraftModel().
  const bool has_given =
      absl::c_any_of(batch.rows(), [](const auto& row) { return !row.tokens.empty(); });
  const bool has_long =
      absl::c_any_of(batch.open_rows(), [](const auto& row) { return row.num_tokens > 1; });
  if (has_given && has_long) batch.MarkFedRows();
}

int DraftPlanner::StepLevels(const BatchInProgress& batch) {
  DraftableStep step = {.num_rows = batch.num_rows()};
  for (int i = 0; i < step.num_rows; ++i) {
    const int most = MaxLevels(batch.open_rows()[i], batch.rows()[i]);
    if (most == 0) continue;
    ++step.num_drafting;
    step.most = std::max(step.most, most);
  }
  if (step.num_drafting == 0) return 0;
  if (policy_.max_speculating_rows > 0 && step.num_rows > policy_.max_speculating_rows) {
    ++statistics_.num_too_large_steps;
    return 0;
  }
  if (!policy_.measures_steps) return step.most;
  // Steps with prefill chunks of several tokens are not measured.
  const int num_levels =
      batch.num_prompt_tokens() > 0 ? costs_.ChooseBesidePrompts(step) : costs_.Choose(step);
  if (num_levels == 0) ++statistics_.num_unpaid_steps;
  return num_levels;
}

int DraftPlanner::MaxLevels(const OpenRow& open, const ScheduledRow& row) const {
  if (!row.tokens.empty()) return 0;
  const SequenceState& sequence = *open.sequence;
  if (!capability_.has_proposer && sequence.PredictedDrafts(/*most=*/1).empty()) return 0;
  const int room = limits_->MaxTokens(sequence) - sequence.num_scheduled;
  return std::max(0, std::min({sequence.max_drafts(), sequence.num_left(), LevelsOf(room)}));
}

int DraftPlanner::NumByAcceptance(SequenceState& sequence, int most) const {
  // With measured steps, all rows use the draft count that was chosen for the step.
  return policy_.measures_steps ? most : sequence.draft_length.Next(most);
}

int DraftPlanner::WantedLevels(SequenceState& sequence, int most) const {
  const int wanted = NumByAcceptance(sequence, most);
  if (!has_drafter_keys() || wanted == 0) return wanted;
  const int num_unseen = sequence.num_unseen();
  if (num_unseen <= DraftsOf(wanted)) return wanted;
  // A catch-up row generates a token, too. Probes would have to catch up all the time.
  const int num_drafts = DraftsOf(most);
  const int num_rows = (num_unseen + num_drafts - 1) / num_drafts - 1;
  return sequence.draft_length.pays() && num_rows < sequence.num_left() ? most : 0;
}

int DraftPlanner::RoomFor(const SequenceState& sequence, int num_tokens, bool& may_grow) {
  const SlotId slot = *sequence.slot;
  const int num_there = blocks_->num_tokens(slot) - sequence.num_scheduled;
  if (num_there >= num_tokens) return num_tokens;
  if (may_grow && blocks_->Append(slot, num_tokens - num_there).ok()) return num_tokens;
  may_grow = false;
  // The rest of the last block.
  const int block_size = blocks_->options().block_size;
  const int begun = blocks_->num_tokens(slot) % block_size;
  const int num_left = begun == 0 ? 0 : block_size - begun;
  const int num_more = std::min(num_left, num_tokens - num_there);
  return num_more > 0 && blocks_->Append(slot, num_more).ok() ? num_there + num_more : num_there;
}

int DraftPlanner::DraftsOf(int num_levels) const {
  const std::vector<int>& drafts = capability_.level_drafts;
  return drafts.empty() || num_levels == 0 ? num_levels : drafts[num_levels - 1];
}

int DraftPlanner::LevelsOf(int num_drafts) const {
  const std::vector<int>& drafts = capability_.level_drafts;
  if (drafts.empty()) return num_drafts;
  return static_cast<int>(absl::c_upper_bound(drafts, num_drafts) - drafts.begin());
}

bool DraftPlanner::HasProposed(const OpenRow& row, absl::Span<const int32_t> new_tokens) const {
  if (!has_drafter_keys() || row.has_given_drafts) return true;
  if (row.sequence->num_unseen() <= row.num_drafts) return true;
  // A drafter without proposals leaves token 0 as each draft, and 0 may be accepted. All other
  // accepted drafts, which are the new tokens before the last, are proposals.
  return !new_tokens.empty() && absl::c_any_of(new_tokens.first(new_tokens.size() - 1),
                                               [](int32_t token) { return token != 0; });
}

void DraftPlanner::ObserveStep(absl::Duration duration, absl::Span<const OpenRow> rows,
                               const StepResult& result) {
  CHECK_EQ(result.tokens.size(), rows.size());
  TimedStep step = {.num_rows = static_cast<int>(rows.size()),
                    .us = absl::ToDoubleMicroseconds(duration)};
  for (size_t i = 0; i < rows.size(); ++i) {
    const OpenRow& row = rows[i];
    const bool is_chunk = row.num_tokens > 1 + row.num_drafts;
    if (is_chunk || (row.num_drafts > 0 && !HasProposed(row, result.NewTokens(i)))) {
      costs_.ObserveOtherStep();
      return;
    }
    step.num_drafts = std::max(step.num_drafts, row.num_levels);
  }
  costs_.ObserveStep(step);
}

void DraftPlanner::Accept(const OpenRow& row, absl::Span<const int32_t> new_tokens, int num_rows) {
  SequenceState& sequence = *row.sequence;
  const int num_accepted = static_cast<int>(new_tokens.size()) - 1;
  CHECK(0 <= num_accepted && num_accepted <= row.num_levels)
      << "expected 1 to " << 1 + row.num_levels << " new tokens, got " << new_tokens.size();
  const int num_drafted_before = sequence.num_drafted;
  if (HasProposed(row, new_tokens)) {
    sequence.draft_length.Observe(row.num_levels, num_accepted);
    costs_.ObserveRow(
        {.num_drafts = row.num_levels, .num_accepted = num_accepted, .num_rows = num_rows});
    statistics_.Add(row.num_levels, num_accepted, row.num_drafts);
    // The drafter has read the newest token. If it keeps the keys of drafts, it has also read the
    // accepted drafts except the last level.
    const bool keeps_drafts = capability_.keys == DrafterKeys::kOfDrafts;
    if (!row.has_given_drafts) {
      sequence.num_drafted =
          sequence.num_known + (keeps_drafts ? std::min(row.num_levels - 1, num_accepted) : 0);
    }
  } else {
    ++statistics_.num_catch_up_rows;
    sequence.num_drafted += 1 + row.num_drafts;
  }
  // Covers only committed tokens: the commits of later tokens call NoteCommitted(), too.
  NoteCommitted(sequence,
                {.first = num_drafted_before,
                 .end = std::min(sequence.num_drafted, blocks_->num_committed(*sequence.slot))});
  sequence.num_in_flight -= row.num_levels - num_accepted;
  sequence.num_scheduled -= row.num_drafts - num_accepted;
}

void DraftPlanner::NoteFed(const OpenRow& row) {
  SequenceState& sequence = *row.sequence;
  const int num_committed = blocks_->num_committed(*sequence.slot);
  if (row.feeds_drafter && sequence.num_drafted >= num_committed) {
    sequence.num_drafted = num_committed + row.num_tokens;
  }
}

void DraftPlanner::NoteCommitted(const SequenceState& sequence, const TokenSpan& range) {
  if (!drafted_blocks_.has_value()) return;
  drafted_blocks_->Set(blocks_->blocks(*sequence.slot, drafted_group_), range,
                       sequence.num_drafted);
}

}  // namespace reprise
