#include "reprise/runner/testing/speculation_cases.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/speculation/draft_levels.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {
namespace {

int Between(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

bool Chance(std::mt19937& random, double p) { return std::bernoulli_distribution(p)(random); }

int MaxLogits(const SpeculationShape& shape) { return shape.num_rows * (1 + shape.max_drafts); }

int64_t HistoryStride(const SpeculationShape& shape) {
  return shape.max_positions() + shape.history_gap;
}

SlotState CarveSlots(const SpeculationShape& shape, ArrayCarver& carver) {
  SlotState slots;
  slots.num_slots = shape.num_slots;
  slots.max_blocks = shape.max_blocks;
  slots.num_groups = static_cast<int>(shape.groups.size());
  slots.block_table_stride = shape.max_blocks + 1;
  slots.block_table_group_stride = shape.num_slots * slots.block_table_stride + 3;
  slots.block_table =
      carver.Take<int32_t>("slots.block_table", slots.num_groups * slots.block_table_group_stride);
  slots.seq_len = carver.Take<int32_t>("slots.seq_len", shape.num_slots);
  slots.last_token = carver.Take<int32_t>("slots.last_token", shape.num_slots);
  slots.sample_index = carver.Take<int64_t>("slots.sample_index", shape.num_slots);
  slots.drafted_len = carver.Take<int32_t>("slots.drafted_len", shape.num_slots);
  const int64_t stride = HistoryStride(shape);
  slots.history.stride = stride;
  slots.history.tokens =
      carver.Take<int32_t>("slots.history", shape.history_offset + shape.num_slots * stride) +
      shape.history_offset;
  return slots;
}

// The step's arrays, or those of a draft model's pass.
StepArrays CarveArrays(const SpeculationShape& shape, bool is_draft, ArrayCarver& carver) {
  const auto name = [&](const char* of_step, const char* of_draft) {
    return is_draft ? of_draft : of_step;
  };
  const int rows = shape.num_rows;
  const int tokens = shape.max_tokens();
  const int logits =
      is_draft ? rows * LevelsOf(shape.tree, shape.max_drafts).max_width() : MaxLogits(shape);
  StepArrays arrays;
  arrays.max_rows = rows;
  arrays.max_tokens = tokens;
  arrays.max_earlier_logits = logits - rows;
  arrays.token_ids = carver.Take<int32_t>(name("token_ids", "draft.token_ids"), tokens);
  arrays.positions = carver.Take<int32_t>(name("positions", "draft.positions"), tokens);
  arrays.slot_mapping = carver.Take<int64_t>(name("slot_mapping", "draft.slot_mapping"),
                                             tokens * static_cast<int64_t>(shape.groups.size()));
  arrays.query_start_loc =
      carver.Take<int32_t>(name("query_start_loc", "draft.query_start_loc"), rows + 1);
  arrays.seq_lens = carver.Take<int32_t>(name("seq_lens", "draft.seq_lens"), rows);
  arrays.context_lens = carver.Take<int32_t>(name("context_lens", "draft.context_lens"), rows);
  arrays.encoder_lens = carver.Take<int32_t>(name("encoder_lens", "draft.encoder_lens"), rows);
  arrays.table_row = carver.Take<int32_t>(name("table_row", "draft.table_row"), rows);
  arrays.logits_indices =
      carver.Take<int32_t>(name("logits_indices", "draft.logits_indices"), logits);
  arrays.sample_slot = carver.Take<int32_t>(name("sample_slot", "draft.sample_slot"), logits);
  arrays.sample_offset = carver.Take<int32_t>(name("sample_offset", "draft.sample_offset"), logits);
  arrays.first_verified =
      carver.Take<int32_t>(name("first_verified", "draft.first_verified"), rows);
  arrays.num_proposed = carver.Take<int32_t>(name("num_proposed", "draft.num_proposed"), rows);
  if (shape.has_trees) {
    arrays.parents = carver.Take<int32_t>(name("parents", "draft.parents"), tokens);
    arrays.tail_len = carver.Take<int32_t>(name("tail_len", "draft.tail_len"), rows);
    arrays.tail_mask = carver.Take<uint64_t>(name("tail_mask", "draft.tail_mask"), tokens);
  }
  arrays.common_prefix_len =
      carver.Take<int32_t>(name("common_prefix_len", "draft.common_prefix_len"), 1);
  arrays.row_faults = carver.Take<int32_t>(name("row_faults", "draft.row_faults"), rows);
  arrays.num_faults = carver.Take<int32_t>(name("num_faults", "draft.num_faults"), 1);
  return arrays;
}

// A text of `size` tokens: at random, or one that repeats a part of itself.
void DrawText(std::mt19937& random, const SpeculationShape& shape, int size, int32_t* text) {
  const int period = Chance(random, 0.4) ? Between(random, 1, 9) : size + 1;
  for (int i = 0; i < size; ++i) {
    text[i] = i >= period ? text[i - period] : Between(random, 0, shape.vocab_size - 1);
    if (Chance(random, 0.02)) text[i] = -1;
  }
}

// The rows of a step as refill leaves them, and the slots before the step.
void DrawStep(std::mt19937& random, const SpeculationShape& shape, const SlotState& slots,
              const StepArrays& arrays) {
  std::vector<int32_t> order(shape.num_slots);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    slots.seq_len[slot] = Between(random, 0, shape.max_positions());
    slots.last_token[slot] = Between(random, 0, shape.vocab_size - 1);
    slots.sample_index[slot] = Between(random, 0, 1000);
    slots.drafted_len[slot] = Between(random, 0, shape.max_positions());
    DrawText(random, shape, shape.max_positions(), slots.history.row(slot));
  }
  std::fill_n(arrays.sample_slot, MaxLogits(shape), -1);
  std::fill_n(arrays.sample_offset, MaxLogits(shape), 0);
  std::fill_n(arrays.token_ids, arrays.max_tokens, 0);
  const double num_padded = Chance(random, 0.3) ? 0.8 : 0.1;
  int token = 0;
  int verified = shape.num_rows;
  for (int r = 0; r < shape.num_rows; ++r) {
    arrays.query_start_loc[r] = token;
    arrays.context_lens[r] = 0;
    arrays.table_row[r] = 0;
    arrays.first_verified[r] = -1;
    arrays.num_proposed[r] = 0;
    if (Chance(random, num_padded)) continue;
    const int32_t slot = order[r];
    const bool has_drafts = Chance(random, 0.7);
    const int query_len =
        std::min(Between(random, has_drafts ? 2 : 1, 1 + shape.max_drafts), shape.max_positions());
    const int32_t context_len = Chance(random, 0.2)
                                    ? shape.max_positions() - query_len
                                    : Between(random, 0, shape.max_positions() - query_len);
    arrays.context_lens[r] = context_len;
    arrays.table_row[r] = slot;
    for (int i = 0; i < query_len; ++i) {
      for (int group = 0; group < static_cast<int>(shape.groups.size()); ++group) {
        // Distinct ones.
        arrays.group_slots(group)[token + i] =
            Chance(random, 0.05) ? -1 : 2 * (token + i) + Between(random, 0, 1);
      }
      if (!shape.has_trees) continue;
      // Near its number mostly, so that there are long paths.
      const int least = Chance(random, 0.7) ? std::max(0, i - 3) : 0;
      arrays.parents[token + i] = i == 0 ? -1 : Between(random, least, i - 1);
    }
    arrays.sample_slot[r] = has_drafts || Chance(random, 0.8) ? slot : -1;
    for (int i = 0; i < query_len; ++i) {
      arrays.token_ids[token + i] = Between(random, 0, shape.vocab_size - 1);
    }
    slots.history.row(slot)[context_len] = arrays.token_ids[token];
    slots.seq_len[slot] = context_len + (has_drafts ? 1 : query_len);
    slots.drafted_len[slot] = std::max(0, context_len + Between(random, -3, 2));
    if (Chance(random, 0.2)) slots.drafted_len[slot] = Between(random, 0, context_len);
    if (has_drafts && query_len > 1) {
      arrays.first_verified[r] = verified;
      if (Chance(random, 0.8)) arrays.num_proposed[r] = query_len - 1;
      arrays.sample_offset[r] = query_len - 1;
      for (int i = 0; i < query_len - 1; ++i, ++verified) {
        arrays.sample_slot[verified] = slot;
        arrays.sample_offset[verified] = i;
      }
    }
    token += query_len;
  }
  arrays.query_start_loc[shape.num_rows] = token;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const SpeculationShape& shape) {
  return out << shape.num_rows << " rows, " << shape.num_slots << " slots of " << shape.max_blocks
             << " blocks of " << shape.block_size << ", " << shape.groups.size() << " groups, "
             << shape.max_drafts << " drafts, vocabulary " << shape.vocab_size << ", pass "
             << shape.pass << ", history offset " << shape.history_offset << " gap "
             << shape.history_gap << ", n-grams of " << shape.min_ngram << " to "
             << shape.max_ngram;
}

SpeculationShape DrawSpeculationShape(std::mt19937& random) {
  SpeculationShape shape;
  shape.num_rows = Chance(random, 0.2) ? Between(random, 30, 300) : Between(random, 1, 9);
  shape.num_slots = shape.num_rows + Between(random, 0, 4);
  shape.max_drafts = Chance(random, 0.2) ? 16 : Between(random, 1, 8);
  shape.vocab_size = Chance(random, 0.5) ? Between(random, 1, 5) : 30000;
  shape.block_size = 1 << Between(random, 0, 4);
  const int max_positions = Chance(random, 0.1) && shape.num_rows < 10 ? 9000 : 200;
  shape.max_blocks = Between(random, 20, max_positions) / shape.block_size + 1;
  shape.num_blocks = Between(random, 20, 500);
  if (Chance(random, 0.5)) {
    shape.groups.push_back(
        {.retention = KvRetention::kSlidingWindow, .span = Between(random, 1, 20)});
  }
  if (Chance(random, 0.3)) {
    shape.groups.push_back(
        {.retention = KvRetention::kChunkedLocal, .span = Between(random, 1, 20)});
  }
  if (Chance(random, 0.2)) shape.groups.push_back({.retention = KvRetention::kCross});
  shape.pass = Between(random, 0, shape.max_drafts);
  shape.history_offset = Chance(random, 0.3) ? Between(random, 1, 3) : 0;
  // Mostly such that all histories are aligned alike.
  shape.history_gap = Chance(random, 0.7) ? 3 - (shape.max_positions() + 3) % 4 : 1;
  shape.keeps_logits = Chance(random, 0.2);
  shape.max_ngram = Chance(random, 0.2) ? kMaxNgram : Between(random, 1, 5);
  shape.min_ngram = Between(random, 1, shape.max_ngram);
  return shape;
}

SpeculationShape DrawTreeShape(std::mt19937& random) {
  SpeculationShape shape = DrawSpeculationShape(random);
  shape.has_trees = true;
  shape.max_drafts = Chance(random, 0.3) ? kMaxTreeDrafts : Between(random, 1, 20);
  shape.max_blocks = std::max(shape.max_blocks, 80 / shape.block_size);
  // Few tokens: several drafts of a node are right, or equal.
  shape.vocab_size = Between(random, 1, 8);
  return shape;
}

SpeculationShape DrawTreeRowsShape(std::mt19937& random) {
  SpeculationShape shape = DrawTreeShape(random);
  shape.tree = {0};
  for (int parent = 0; static_cast<int>(shape.tree.size()) < shape.max_drafts; ++parent) {
    // Of each level the last node has drafts behind it at least.
    const bool is_last = parent == static_cast<int>(shape.tree.size());
    const int count = Between(random, is_last ? 1 : 0, 3);
    for (int i = 0; i < count && static_cast<int>(shape.tree.size()) < shape.max_drafts; ++i) {
      shape.tree.push_back(parent);
    }
  }
  shape.pass = Between(random, 0, LevelsOf(shape.tree, shape.max_drafts).num_levels());
  return shape;
}

NgramDraftsArgs CarveNgramDrafts(const SpeculationShape& shape, ArrayCarver& carver) {
  NgramDraftsArgs args;
  args.slots = CarveSlots(shape, carver);
  args.arrays = CarveArrays(shape, /*is_draft=*/false, carver);
  args.num_rows = shape.num_rows;
  args.min_ngram = shape.min_ngram;
  args.max_ngram = shape.max_ngram;
  return args;
}

DraftRowsArgs CarveDraftRows(const SpeculationShape& shape, ArrayCarver& carver) {
  DraftRowsArgs args;
  args.slots = CarveSlots(shape, carver);
  args.arrays = CarveArrays(shape, /*is_draft=*/false, carver);
  args.draft = CarveArrays(shape, /*is_draft=*/true, carver);
  if (shape.keeps_logits && shape.tree.empty()) {
    args.arrays.draft_logits = carver.Take<int32_t>("draft_logits", args.arrays.max_tokens);
    args.logits_stride = shape.num_rows + 1;
  }
  const DraftLevels levels = LevelsOf(shape.tree, shape.max_drafts);
  const int64_t num_logits = int64_t{shape.num_rows} * levels.max_width();
  int width = 1;
  int max_ranks = 1;
  if (levels.is_tree) {
    max_ranks = *std::max_element(levels.num_ranks.begin(), levels.num_ranks.end());
    args.level = {.tree = carver.Take<int32_t>("level.tree", shape.max_drafts),
                  .ranks = carver.Take<int32_t>("level.ranks", shape.max_drafts),
                  .num_levels = levels.num_levels(),
                  .first_before = shape.pass == 0 ? 0 : levels.first[shape.pass - 1],
                  .first = levels.first[shape.pass],
                  .end = levels.first[shape.pass + 1],
                  .rank_stride = num_logits};
    width = levels.Width(shape.pass);
  }
  args.chosen = carver.Take<int32_t>("chosen", max_ranks * num_logits);
  args.pass = shape.pass;
  args.max_drafts = shape.max_drafts;
  args.num_rows = shape.num_rows;
  args.num_tokens = NumDraftTokens(shape.pass, shape.num_rows, shape.max_drafts, width);
  args.block_size = shape.block_size;
  args.num_blocks = shape.num_blocks;
  std::copy(shape.groups.begin(), shape.groups.end(), args.groups);
  return args;
}

void DrawNgramDrafts(std::mt19937& random, const SpeculationShape& shape, NgramDraftsArgs& args) {
  DrawStep(random, shape, args.slots, args.arrays);
  for (int r = 0; r < shape.num_rows; ++r) {
    const int first_token = args.arrays.query_start_loc[r];
    for (int i = 0; i < args.arrays.num_proposed[r]; ++i) {
      args.arrays.token_ids[first_token + 1 + i] = 0;
    }
    // Mostly the text goes on as it began.
    const int32_t context_len = args.arrays.context_lens[r];
    if (args.arrays.num_proposed[r] == 0 || context_len == 0 || Chance(random, 0.3)) continue;
    const int32_t* history = args.slots.history.row(args.arrays.table_row[r]);
    args.arrays.token_ids[first_token] = history[Between(random, 0, context_len - 1)];
  }
}

void DrawDraftRows(std::mt19937& random, const SpeculationShape& shape, double hostility,
                   DraftRowsArgs& args) {
  DrawStep(random, shape, args.slots, args.arrays);
  for (int group = 0; group < args.slots.num_groups; ++group) {
    for (int slot = 0; slot < shape.num_slots; ++slot) {
      int32_t* row = args.slots.table_row(group, slot);
      for (int column = 0; column < shape.max_blocks; ++column) {
        row[column] = Between(random, 1, shape.num_blocks - 1);
        if (Chance(random, hostility)) row[column] = 0;
        if (Chance(random, hostility / 4)) {
          row[column] = Chance(random, 0.5) ? -1 : shape.num_blocks;
        }
      }
    }
  }
  auto* chosen = const_cast<int32_t*>(args.chosen);
  if (!shape.tree.empty()) {
    std::copy(shape.tree.begin(), shape.tree.end(), const_cast<int32_t*>(args.level.tree));
    std::ranges::copy(RanksOf(shape.tree), const_cast<int32_t*>(args.level.ranks));
  }
  const DraftLevels levels = LevelsOf(shape.tree, shape.max_drafts);
  const int max_ranks = *std::max_element(levels.num_ranks.begin(), levels.num_ranks.end());
  for (int i = 0; i < max_ranks * shape.num_rows * levels.max_width(); ++i) {
    chosen[i] = Between(random, 0, shape.vocab_size - 1);
    if (Chance(random, 0.2)) chosen[i] = Chance(random, 0.5) ? kNotSampled : kNanRow;
  }
  for (int r = 0; r < shape.num_rows; ++r) {
    // Of the pass before.
    args.draft.seq_lens[r] = Chance(random, 0.2) ? 0 : args.arrays.context_lens[r] + shape.pass;
  }
}

}  // namespace reprise
