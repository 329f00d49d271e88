#include "reprise/attention/testing/speculation/draft_cases.h"

#include <algorithm>
#include <numeric>

#include "reprise/attention/speculation/missing_token.h"

namespace reprise {
namespace {

constexpr int32_t kAbsurd[] = {-12345, 1 << 30, INT32_MIN, INT32_MAX, -1, 0};

bool Chance(Random& random, double p) { return p > 0 && random.Real(0, 1) < p; }

int32_t Absurd(Random& random) { return kAbsurd[random.Int(0, 5)]; }

template <typename T>
T* Mutable(const T* array) {
  return const_cast<T*>(array);
}

// Returns the index of each draft among the children of its parent.
std::vector<int32_t> Ranks(const std::vector<int>& tree) {
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < tree.size(); ++i) {
    ranks.push_back(static_cast<int32_t>(std::count(tree.begin(), tree.begin() + i, tree[i])));
  }
  return ranks;
}

void DrawTables(Random& random, const DraftRowsShape& shape, double hostility, RowArgs& rows) {
  for (size_t group = 0; group < shape.groups.size(); ++group) {
    for (int slot = 0; slot < shape.num_slots; ++slot) {
      int32_t* row =
          Mutable(rows.table.entries) + group * rows.group_stride + slot * rows.table.row_stride;
      for (int column = 0; column < shape.max_blocks; ++column) {
        row[column] = random.Int(1, shape.num_blocks - 1);
        if (Chance(random, hostility)) row[column] = 0;
        if (Chance(random, hostility / 4)) row[column] = random.Pick({-1, shape.num_blocks});
      }
    }
  }
}

// Draws the parents of `num_nodes` nodes of a row.
void DrawParents(Random& random, const DraftRowsShape& shape, double hostility, int num_nodes,
                 int32_t* parents) {
  int level = 0;
  for (int node = 0; node < num_nodes; ++node) {
    while (node >= shape.level_starts[level + 1]) ++level;
    const int first = shape.level_starts[level];
    if (node == 0) {
      parents[node] = -1;
    } else {
      parents[node] =
          shape.tree.empty() ? random.Int(std::max(0, first - 5), first - 1) : shape.tree[node - 1];
    }
    if (Chance(random, hostility)) parents[node] = random.Pick({node, first, -1, 64, -9});
  }
}

}  // namespace

int DraftRowsShape::max_width() const {
  int widest = 1;
  for (int level = 0; level < num_passes(); ++level) widest = std::max(widest, width(level));
  return is_tree() ? std::max(widest, width(num_passes())) : 1;
}

int DraftRowsShape::max_ranks() const {
  const std::vector<int32_t> ranks = Ranks(tree);
  return ranks.empty() ? 1 : 1 + *std::max_element(ranks.begin(), ranks.end());
}

std::ostream& operator<<(std::ostream& out, const DraftRowsShape& shape) {
  return out << shape.num_rows << " rows, " << shape.num_slots << " slots of " << shape.max_blocks
             << " blocks of " << shape.block_size << ", " << shape.groups.size() << " groups, "
             << shape.max_drafts << " drafts, pass " << shape.pass << " of " << shape.num_passes()
             << (shape.is_tree() ? " of a tree" : "") << (shape.tree.empty() ? "" : " with ranks");
}

DraftRowsShape DrawDraftRowsShape(Random& random) {
  DraftRowsShape shape;
  shape.num_rows = random.OneIn(5) ? random.Int(30, 300) : random.Int(1, 9);
  shape.num_slots = shape.num_rows + random.Int(0, 4);
  shape.max_drafts = random.OneIn(5) ? 16 : random.Int(1, 8);
  shape.vocab_size = random.OneIn(2) ? random.Int(1, 5) : 30000;
  shape.block_size = 1 << random.Int(0, 4);
  shape.max_blocks = random.Int(20, 200) / shape.block_size + 1;
  shape.num_blocks = random.Int(20, 500);
  if (random.OneIn(2)) {
    shape.groups.push_back({.retention = KvRetention::kSlidingWindow, .span = random.Int(1, 20)});
  }
  if (random.OneIn(3)) {
    shape.groups.push_back({.retention = KvRetention::kChunkedLocal, .span = random.Int(1, 20)});
  }
  if (random.OneIn(5)) shape.groups.push_back({.retention = KvRetention::kCross});
  shape.pass = random.OneIn(3) ? 0 : random.Int(0, shape.max_drafts);
  shape.keeps_logits = random.OneIn(5);
  shape.has_faults = random.OneIn(2);
  return shape;
}

DraftRowsShape DrawDraftTreeShape(Random& random) {
  DraftRowsShape shape = DrawDraftRowsShape(random);
  shape.max_drafts = random.OneIn(3) ? 63 : random.Int(1, 20);
  shape.max_blocks = std::max(shape.max_blocks, 80 / shape.block_size);
  shape.keeps_logits = false;
  // Each node of a level has 0 to 3 children. The last node has at least one if no other node has
  // any.
  shape.level_starts = {0, 1};
  for (int parent = 0; static_cast<int>(shape.tree.size()) < shape.max_drafts; ++parent) {
    const int num_nodes = 1 + static_cast<int>(shape.tree.size());
    if (parent == shape.level_starts.back()) shape.level_starts.push_back(num_nodes);
    const bool is_needed = parent + 1 == num_nodes;
    const int count = random.Int(is_needed ? 1 : 0, 3);
    for (int i = 0; i < count && static_cast<int>(shape.tree.size()) < shape.max_drafts; ++i) {
      shape.tree.push_back(parent);
    }
  }
  shape.level_starts.push_back(1 + shape.max_drafts);
  if (random.OneIn(2)) shape.tree.clear();
  shape.pass = random.Int(0, shape.num_passes());
  return shape;
}

DraftRowsArgs CarveDraftRows(const DraftRowsShape& shape, ArrayCarver& carver) {
  const int rows = shape.num_rows;
  const int tokens = shape.max_tokens();
  const auto num_groups = static_cast<int64_t>(shape.groups.size());
  DraftRowsArgs args;
  args.pass = shape.pass;
  args.max_drafts = shape.max_drafts;
  args.drafted_len = carver.Take<int32_t>("drafted_len", shape.num_slots);
  args.history.stride = shape.max_positions();
  args.history.tokens = carver.Take<int32_t>("history", shape.num_slots * args.history.stride);
  args.step = {.token_ids = carver.Take<int32_t>("step.token_ids", tokens),
               .query_start_loc = carver.Take<int32_t>("step.query_start_loc", rows + 1),
               .context_lens = carver.Take<int32_t>("step.context_lens", rows),
               .slot_of_row = carver.Take<int32_t>("step.slot_of_row", rows),
               .num_proposed = carver.Take<int32_t>("step.num_proposed", rows),
               .num_tokens = tokens};
  if (shape.keeps_logits) {
    args.step.draft_logits = carver.Take<int32_t>("step.draft_logits", tokens);
    args.logits_stride = rows + 1;
  }
  RowArgs& pass = args.rows;
  pass.num_rows = rows;
  pass.num_tokens = NumDraftTokens(shape.pass, rows, shape.max_drafts, shape.width(shape.pass));
  pass.num_groups = static_cast<int>(num_groups);
  std::copy(shape.groups.begin(), shape.groups.end(), pass.groups);
  const int64_t stride = shape.max_blocks + 1;
  pass.group_stride = shape.num_slots * stride + 3;
  pass.table = {.entries = carver.Take<int32_t>("block_table", num_groups * pass.group_stride),
                .row_stride = stride,
                .num_tables = shape.num_slots,
                .max_blocks = shape.max_blocks,
                .block_size = shape.block_size,
                .num_blocks = shape.num_blocks};
  args.num_logits = rows * shape.max_width();
  pass.arrays = {.token_ids = carver.Take<int32_t>("token_ids", tokens),
                 .positions = carver.Take<int32_t>("positions", tokens),
                 .slot_mapping = carver.Take<int64_t>("slot_mapping", num_groups * tokens),
                 .query_start_loc = carver.Take<int32_t>("query_start_loc", rows + 1),
                 .seq_lens = carver.Take<int32_t>("seq_lens", rows),
                 .table_row = carver.Take<int32_t>("table_row", rows),
                 .logits_indices = carver.Take<int32_t>("logits_indices", args.num_logits),
                 .context_lens = carver.Take<int32_t>("context_lens", rows),
                 .group_stride = tokens};
  if (shape.has_faults) pass.arrays.row_faults = carver.Take<int32_t>("row_faults", rows);
  args.sample_slot = carver.Take<int32_t>("sample_slot", args.num_logits);
  args.sample_offset = carver.Take<int32_t>("sample_offset", args.num_logits);
  args.encoder_lens = carver.Take<int32_t>("encoder_lens", rows);
  args.common_prefix_len = carver.Take<int32_t>("common_prefix_len", 1);
  args.chosen = carver.Take<int32_t>("chosen", int64_t{shape.max_ranks()} * args.num_logits);
  if (!shape.is_tree()) return args;
  args.step.parents.nodes = carver.Take<int32_t>("step.parents", tokens);
  args.tail_len = carver.Take<int32_t>("tail_len", rows);
  args.tail_mask = carver.Take<uint64_t>("tail_mask", tokens);
  args.level = {.num_levels = shape.num_passes(),
                .first_before = shape.pass == 0 ? 0 : shape.level_starts[shape.pass - 1],
                .first = shape.level_starts[shape.pass],
                .end = shape.level_starts[shape.pass + 1]};
  if (!shape.tree.empty()) {
    args.level.ranks = carver.Take<int32_t>("level.ranks", shape.max_drafts);
    args.level.rank_stride = args.num_logits;
  }
  return args;
}

void DrawDraftRows(Random& random, const DraftRowsShape& shape, const DraftHostility& hostility,
                   DraftRowsArgs& args) {
  const auto put = [&](const int32_t* array, int64_t i, int32_t value) {
    Mutable(array)[i] = Chance(random, hostility.values) ? Absurd(random) : value;
  };
  DrawTables(random, shape, hostility.blocks, args.rows);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    put(args.drafted_len, slot, random.Int(0, shape.max_positions()));
    for (int p = 0; p < shape.max_positions(); ++p) {
      args.history.row(slot)[p] = random.OneIn(50) ? -1 : random.Int(0, shape.vocab_size - 1);
    }
  }
  std::vector<int32_t> slots(shape.num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  random.Shuffle(slots);
  const double padded = random.OneIn(3) ? 0.8 : 0.1;
  int token = 0;
  for (int r = 0; r < shape.num_rows; ++r) {
    const bool is_padded = Chance(random, padded);
    const int query_len =
        is_padded ? 0 : std::min(random.Int(1, 1 + shape.max_drafts), shape.max_positions());
    const int last = std::max(0, shape.max_positions() - query_len);
    const int context_len = random.OneIn(5) ? last : random.Int(0, last);
    put(args.step.query_start_loc, r, token);
    put(args.step.context_lens, r, is_padded ? 0 : context_len);
    const bool is_lost = Chance(random, hostility.values);
    Mutable(args.step.slot_of_row)[r] =
        is_lost ? random.Pick({-1, shape.num_slots, INT32_MAX}) : (is_padded ? 0 : slots[r]);
    put(args.step.num_proposed, r, is_padded || random.OneIn(4) ? 0 : query_len - 1);
    // Two rows with the same slot would be a race.
    if (is_padded) Mutable(args.step.num_proposed)[r] = 0;
    if (shape.is_tree()) {
      DrawParents(random, shape, hostility.parents, query_len,
                  Mutable(args.step.parents.nodes) + token);
    }
    for (int i = 0; i < query_len; ++i) {
      args.step.token_ids[token + i] = random.Int(0, shape.vocab_size - 1);
    }
    if (!is_padded && args.drafted_len[slots[r]] >= 0 && !random.OneIn(5)) {
      args.drafted_len[slots[r]] = std::max(0, context_len + random.Int(-3, 2));
    }
    // The state after the previous pass.
    args.rows.arrays.seq_lens[r] = random.OneIn(5) ? 0 : context_len + shape.pass;
    token += query_len;
  }
  put(args.step.query_start_loc, shape.num_rows, token);
  for (; token < shape.max_tokens(); ++token) {
    args.step.token_ids[token] = 0;
    if (shape.is_tree()) Mutable(args.step.parents.nodes)[token] = -1;
  }
  const int num_chosen = shape.max_ranks() * args.num_logits;
  for (int i = 0; i < num_chosen; ++i) {
    put(args.chosen, i, random.Int(0, shape.vocab_size - 1));
    if (random.OneIn(5)) Mutable(args.chosen)[i] = random.Pick({kNotSampled, kNanRow});
  }
  if (!shape.tree.empty()) std::ranges::copy(Ranks(shape.tree), Mutable(args.level.ranks));
}

}  // namespace reprise
