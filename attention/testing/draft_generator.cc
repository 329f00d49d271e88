#include "reprise/attention/testing/draft_generator.h"

#include <algorithm>
#include <numeric>

#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

constexpr int32_t kAbsurd[] = {-12345, 1 << 30, INT32_MIN, INT32_MAX, -1, 0};

int32_t Absurd(Random& random) { return kAbsurd[random.Int(0, 5)]; }

bool IsHostile(Random& random, double hostility) {
  return hostility > 0 && random.Real(0, 1) < hostility;
}

template <typename T>
T* Mutable(const T* array) {
  return const_cast<T*>(array);
}

int64_t LimitOf(const DraftShape& shape) {
  return std::min<int64_t>(shape.max_context_len, int64_t{shape.max_blocks} * shape.block_size);
}

BlockTableView CarveTable(const DraftShape& shape, ArrayCarver& carver) {
  const int64_t stride = shape.max_blocks + 1;
  return {.entries = carver.Take<int32_t>("block_table", shape.num_tables * stride),
          .row_stride = stride,
          .num_tables = shape.num_tables,
          .max_blocks = shape.max_blocks,
          .block_size = shape.block_size,
          .num_blocks = shape.num_blocks()};
}

BatchArrays CarveArrays(int64_t num_rows, int64_t num_tokens, bool has_tail, ArrayCarver& carver) {
  BatchArrays arrays = {.token_ids = carver.Take<int32_t>("token_ids", num_tokens),
                        .positions = carver.Take<int32_t>("positions", num_tokens),
                        .slot_mapping = carver.Take<int64_t>("slot_mapping", num_tokens),
                        .query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1),
                        .seq_lens = carver.Take<int32_t>("seq_lens", num_rows),
                        .table_row = carver.Take<int32_t>("table_row", num_rows),
                        .logits_indices = carver.Take<int32_t>("logits_indices", num_rows),
                        .row_faults = carver.Take<int32_t>("row_faults", num_rows)};
  if (has_tail) {
    arrays.tail_len = carver.Take<int32_t>("tail_len", num_rows);
    arrays.tail_mask = carver.Take<uint64_t>("tail_mask", num_tokens);
  }
  return arrays;
}

// Returns the length of a sequence: short, near a block boundary, near the limit, or any.
int DrawSeqLen(Random& random, const DraftShape& shape) {
  const int64_t limit = LimitOf(shape);
  const int border = shape.block_size * random.Int(0, 4) + random.Int(-1, 1);
  const int length = random.Pick({random.Int(0, 6), border, random.Int(0, 40),
                                  static_cast<int>(limit) - random.Int(0, shape.max_new + 1),
                                  random.Int(0, static_cast<int>(limit))});
  return static_cast<int>(std::clamp<int64_t>(length, 0, limit));
}

// Draws the lengths of all table rows and a shuffled table. The table has blocks for the cached
// tokens and `num_new` more tokens; later entries are invalid.
void DrawSequences(Random& random, const DraftShape& shape, int num_new, double hostility,
                   const BlockTableView& table, int32_t* seq_len) {
  std::vector<int32_t> blocks(shape.num_blocks() - 1);
  std::iota(blocks.begin(), blocks.end(), 1);
  random.Shuffle(blocks);
  int32_t* entries = Mutable(table.entries);
  for (int row = 0; row < shape.num_tables; ++row) {
    seq_len[row] = DrawSeqLen(random, shape);
    const int64_t last = int64_t{seq_len[row]} + num_new;
    for (int column = 0; column < table.row_stride; ++column) {
      const bool is_used = column < shape.max_blocks && int64_t{column} * shape.block_size < last;
      int32_t& entry = entries[row * table.row_stride + column];
      entry = is_used ? blocks[row * shape.max_blocks + column] : Absurd(random);
      if (IsHostile(random, hostility)) entry = Absurd(random);
    }
    if (IsHostile(random, hostility)) seq_len[row] = Absurd(random);
  }
}

// Draws distinct table rows for the live rows, in any order, and negative values for padded rows.
void DrawSlots(Random& random, const DraftShape& shape, double hostility, int32_t* slots) {
  std::vector<int32_t> rows(shape.num_tables);
  std::iota(rows.begin(), rows.end(), 0);
  random.Shuffle(rows);
  const int num_live =
      random.Pick({shape.num_rows, random.Int(0, shape.num_rows), random.Int(0, shape.num_rows)});
  for (int r = 0; r < shape.num_rows; ++r) {
    const bool is_live = r < std::min(num_live, shape.num_tables) && !random.OneIn(8);
    slots[r] = is_live ? rows[r] : -1 - random.Int(0, 3);
    if (IsHostile(random, hostility)) slots[r] = Absurd(random);
  }
}

void DrawTokens(Random& random, int64_t count, int32_t* tokens) {
  for (int64_t i = 0; i < count; ++i) tokens[i] = random.Int(0, 100000);
}

}  // namespace

int64_t SlotByDefinition(const BlockTableView& table, int row, int64_t position) {
  return int64_t{table.entries[row * table.row_stride + position / table.block_size]} *
             table.block_size +
         position % table.block_size;
}

std::ostream& operator<<(std::ostream& out, const DraftShape& shape) {
  return out << "rows " << shape.num_rows << ", tables " << shape.num_tables << " of "
             << shape.max_blocks << " blocks of " << shape.block_size << ", max_new "
             << shape.max_new << ", num_tokens " << shape.num_tokens << ", max_context_len "
             << shape.max_context_len;
}

DraftShape DrawDraftShape(Random& random) {
  DraftShape shape;
  shape.block_size = random.Pick({1, 2, 3, 4, 8, 16, random.Int(1, 32)});
  const int longest = random.Pick({20, 60, 100, 300});
  shape.max_blocks = NumBlocksFor(longest, shape.block_size);
  shape.max_context_len = longest + random.Pick({-9, -1, 0, 1, 500});
  shape.num_rows = random.Int(0, 5);
  shape.num_tables = random.Int(shape.num_rows, 7);
  shape.max_new = random.Pick({1, 2, 5, 9, random.Int(1, 24), 64});
  shape.num_tokens = shape.num_rows * shape.max_new + random.Int(0, 3);
  return shape;
}

std::vector<int32_t> DrawTree(Random& random, int num_nodes) {
  const int kind = random.Int(0, 5);
  std::vector<int32_t> parents(num_nodes, -1);
  for (int node = 1; node < num_nodes; ++node) {
    const int recent = std::max(0, node - 4);
    parents[node] = kind == 0 ? node - 1 : kind == 1 ? 0 : random.Int(0, node - 1);
    if (kind == 2) parents[node] = random.Int(recent, node - 1);
    if (kind == 3) parents[node] = random.Int(-1, node - 1);
  }
  return parents;
}

BatchGatherArgs CarveChainBatch(const DraftShape& shape, ArrayCarver& carver) {
  BatchGatherArgs args;
  args.table_row = carver.Take<int32_t>("in.table_row", shape.num_rows);
  args.table_seq_lens = carver.Take<int32_t>("table_seq_lens", shape.num_tables);
  args.seq_len_form = SeqLenForm::kBeforeStep;
  args.query_lens = carver.Take<int32_t>("query_lens", shape.num_rows);
  args.num_verified = shape.max_new > 1 ? 1 : 0;
  args.first_token = carver.Take<int32_t>("first_token", shape.num_tables);
  args.token_stride = shape.max_new + 1;
  args.tokens = carver.Take<int32_t>("tokens", shape.num_rows * args.token_stride);
  args.table = CarveTable(shape, carver);
  args.num_rows = shape.num_rows;
  args.num_tokens = shape.num_tokens;
  args.max_query_len = shape.max_new;
  args.max_seq_len = static_cast<int>(shape.max_context_len);
  args.past_limit = PastLimit::kClip;
  args.null_blocks = NullBlocks::kByRetention;
  args.arrays = CarveArrays(shape.num_rows, shape.num_tokens, false, carver);
  return args;
}

TreeBatchArgs CarveTreeBatch(const DraftShape& shape, ArrayCarver& carver) {
  TreeBatchArgs args;
  args.slots = carver.Take<int32_t>("slots", shape.num_rows);
  args.seq_len = carver.Take<int32_t>("seq_len", shape.num_tables);
  args.num_nodes = carver.Take<int32_t>("num_nodes", shape.num_rows);
  args.parent_stride = shape.max_new;
  args.parents = carver.Take<int32_t>("parents", shape.num_rows * args.parent_stride);
  args.first_token = carver.Take<int32_t>("first_token", shape.num_tables);
  args.token_stride = shape.max_new + 1;
  args.tokens = carver.Take<int32_t>("tokens", shape.num_rows * args.token_stride);
  args.table = CarveTable(shape, carver);
  args.max_context_len = shape.max_context_len;
  args.num_rows = shape.num_rows;
  args.num_tokens = shape.num_tokens;
  args.max_nodes = shape.max_new;
  args.arrays = CarveArrays(shape.num_rows, shape.num_tokens, true, carver);
  return args;
}

CrossDraftArgs CarveCrossDraft(const DraftShape& shape, ArrayCarver& carver) {
  CrossDraftArgs args;
  args.decoder = CarveChainBatch(shape, carver);
  args.cross.rows = GatherBatch(args.decoder);
  args.cross.encoder_lens = carver.Take<int32_t>("encoder_lens", shape.num_tables);
  args.cross.table = {.entries = carver.Take<int32_t>("encoder_table",
                                                      int64_t{shape.num_tables} * shape.max_blocks),
                      .row_stride = shape.max_blocks,
                      .num_tables = shape.num_tables,
                      .max_blocks = shape.max_blocks,
                      .block_size = shape.block_size,
                      .num_blocks = shape.num_blocks()};
  args.cross.max_encoder_len = shape.max_blocks * shape.block_size;
  args.cross.seq_lens = carver.Take<int32_t>("cross_seq_lens", shape.num_rows);
  return args;
}

AdvanceStepArgs CarveAdvanceStep(const DraftShape& shape, ArrayCarver& carver) {
  AdvanceStepArgs args;
  args.sampled = carver.Take<int32_t>("sampled", shape.num_rows);
  args.table = CarveTable(shape, carver);
  args.max_context_len = shape.max_context_len;
  args.num_rows = shape.num_rows;
  args.num_tokens = shape.num_tokens;
  args.arrays = CarveArrays(shape.num_rows, shape.num_tokens, false, carver);
  args.seq_lens = args.arrays.seq_lens;  // in place
  args.table_row = args.arrays.table_row;
  if (shape.packed_indices < 0) return args;
  args.packed = {.block_indptr = carver.Take<int32_t>("block_indptr", shape.num_rows + 1),
                 .block_indices = carver.Take<int32_t>("block_indices", shape.packed_indices),
                 .last_block_len = carver.Take<int32_t>("last_block_len", shape.num_rows),
                 .num_rows = shape.num_rows,
                 .max_indices = shape.packed_indices,
                 .block_size = shape.block_size};
  return args;
}

void DrawChainBatch(Random& random, const DraftShape& shape, double hostility,
                    BatchGatherArgs& args) {
  DrawSequences(random, shape, shape.max_new, hostility, args.table, Mutable(args.table_seq_lens));
  DrawSlots(random, shape, hostility, Mutable(args.table_row));
  for (int r = 0; r < shape.num_rows; ++r) {
    int32_t& query_len = Mutable(args.query_lens)[r];
    query_len = random.Int(0, shape.max_new - args.num_verified);
    if (IsHostile(random, hostility)) query_len = Absurd(random);
  }
  DrawTokens(random, shape.num_tables, Mutable(args.first_token));
  DrawTokens(random, shape.num_rows * args.token_stride, Mutable(args.tokens));
}

void DrawTreeBatch(Random& random, const DraftShape& shape, double hostility, TreeBatchArgs& args) {
  DrawSequences(random, shape, shape.max_new, hostility, args.table, Mutable(args.seq_len));
  DrawSlots(random, shape, hostility, Mutable(args.slots));
  for (int r = 0; r < shape.num_rows; ++r) {
    const int num_nodes = random.Int(0, shape.max_new);
    const std::vector<int32_t> parents = DrawTree(random, num_nodes);
    Mutable(args.num_nodes)[r] = IsHostile(random, hostility) ? Absurd(random) : num_nodes;
    for (int node = 0; node < args.parent_stride; ++node) {
      int32_t& parent = Mutable(args.parents)[r * args.parent_stride + node];
      parent = node < num_nodes ? parents[node] : Absurd(random);
      if (IsHostile(random, hostility / 8)) parent = random.Pick({node, node + 1, Absurd(random)});
    }
  }
  DrawTokens(random, shape.num_tables, Mutable(args.first_token));
  DrawTokens(random, shape.num_rows * args.token_stride, Mutable(args.tokens));
}

void DrawCrossDraft(Random& random, const DraftShape& shape, CrossDraftArgs& args) {
  DrawChainBatch(random, shape, 0, args.decoder);
  auto* lens = const_cast<int32_t*>(args.cross.encoder_lens);
  auto* entries = const_cast<int32_t*>(args.cross.table.entries);
  for (int row = 0; row < shape.num_tables; ++row) {
    lens[row] = random.OneIn(5) ? 0 : random.Int(0, args.cross.max_encoder_len);
    for (int64_t column = 0; column < shape.max_blocks; ++column) {
      const bool is_used = column * shape.block_size < lens[row];
      // Uses every block once, in an order that depends on the length.
      const auto block = static_cast<int32_t>(1 + row * shape.max_blocks +
                                              (column + lens[row]) % shape.max_blocks);
      entries[row * shape.max_blocks + column] = is_used ? block : -12345;
    }
  }
}

void DrawAdvanceStep(Random& random, const DraftShape& shape, double hostility,
                     AdvanceStepArgs& args) {
  std::vector<int32_t> seq_len(shape.num_tables);
  std::vector<int32_t> slots(shape.num_rows);
  DrawSequences(random, shape, 1, hostility, args.table, seq_len.data());
  DrawSlots(random, shape, 0, slots.data());
  const int64_t limit = LimitOf(shape);
  for (int r = 0; r < shape.num_rows; ++r) {
    // A row at its limit cannot continue. That is a fault, so it requires hostility.
    const bool is_live = slots[r] >= 0 && (seq_len[slots[r]] < limit || hostility > 0);
    const auto put = [&](const int32_t* array, int32_t value) {
      Mutable(array)[r] = IsHostile(random, hostility) ? Absurd(random) : value;
    };
    put(args.seq_lens, is_live ? seq_len[slots[r]] : 0);
    put(args.table_row, is_live ? slots[r] : 0);
    put(args.sampled, random.Int(0, 100000));
  }
}

}  // namespace reprise
