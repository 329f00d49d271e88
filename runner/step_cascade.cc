#include "reprise/runner/step_cascade.h"

#include <algorithm>
#include <limits>

#include "reprise/attention/tile_schedule/tile_schedule.h"

namespace reprise {
namespace {

// A tile schedule shares only whole KV tiles.
int64_t WholeSteps(int64_t num_keys) { return num_keys / kWorkStepKeys * kWorkStepKeys; }

}  // namespace

StepCascade::StepCascade(const StepCascadeOptions& options) : options_(options) {
  for (const int group : options_.groups) {
    blocks_.emplace_back(CommonBlocksOptions{
        .num_slots = options_.num_slots, .max_blocks = options_.max_blocks, .group = group});
  }
  min_rows_ = FindMinRows();
}

std::optional<int> StepCascade::FindMinRows() const {
  const int64_t prefix = WholeSteps(options_.max_seq_len - 1);
  for (int rows = 2; rows <= options_.num_slots; ++rows) {
    const Lengths lengths = {.num_rows = rows, .sum = rows * (prefix + 1), .max = prefix + 1};
    if (Rule(lengths, prefix).use()) return rows;
  }
  return std::nullopt;
}

CascadeDecision StepCascade::Rule(const Lengths& lengths, int64_t common_prefix_len) const {
  CascadeDecision all = {.reason = CascadeReason::kNotQuicker};
  for (const CascadeLayers& layers : options_.classes) {
    CascadeShape shape = layers.layer;
    shape.num_rows = lengths.num_rows;
    shape.num_tokens = lengths.num_rows;
    shape.common_prefix_len = common_prefix_len;
    shape.num_suffix_keys = lengths.sum - lengths.num_rows * common_prefix_len;
    shape.max_seq_len = lengths.max;
    const CascadeDecision one = ChooseCascade(shape, options_.costs);
    if (!one.use() && one.reason != CascadeReason::kNotQuicker) return one;
    all.flat_us += layers.num_layers * one.flat_us;
    all.cascade_us += layers.num_layers * one.cascade_us;
  }
  if (all.cascade_us < (1 - options_.costs.min_gain) * all.flat_us) {
    all.reason = CascadeReason::kUse;
  }
  return all;
}

StepCascade::Decision StepCascade::Decide(const ScheduledBatch& batch, const SlotMirror& mirror) {
  for (CommonBlocks& blocks : blocks_) blocks.Follow(batch);
  if (batch.rows.empty()) return {};
  const Decision decision = Choose(batch, mirror);
  ++num_steps_[static_cast<int>(decision.rule.reason)];
  return decision;
}

StepCascade::Decision StepCascade::Choose(const ScheduledBatch& batch, const SlotMirror& mirror) {
  Lengths lengths = {.num_rows = static_cast<int>(batch.rows.size())};
  // Minimum number of keys before a row's own query.
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const ScheduledRow& row : batch.rows) {
    if (row.query_len() > 1) return {.rule = {.reason = CascadeReason::kManyQueries}};
    const int64_t seq_len = mirror.seq_len(row.slot);
    lengths.sum += seq_len;
    lengths.max = std::max(lengths.max, seq_len);
    least = std::min(least, seq_len - 1);
  }
  if (lengths.num_rows < 2) return {.rule = {.reason = CascadeReason::kFewRows}};
  int64_t num_blocks = least / options_.block_size;
  for (CommonBlocks& blocks : blocks_) {
    if (num_blocks > 0) num_blocks = std::min<int64_t>(num_blocks, blocks.Count(batch.rows));
  }
  const int64_t common_prefix_len = num_blocks * options_.block_size;
  Decision decision = {.rule = Rule(lengths, WholeSteps(common_prefix_len))};
  if (decision.rule.use()) decision.common_prefix_len = static_cast<int>(common_prefix_len);
  return decision;
}

}  // namespace reprise
