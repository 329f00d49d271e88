#include "reprise/cache/testing/conversion_cases.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iterator>
#include <utility>

#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

MutableBlockTableView CarveTable(const char* name, int num_tables, int max_blocks, int block_size,
                                 ArrayCarver& carver) {
  const int64_t row_stride = max_blocks + 1;
  return {.entries = carver.Take<int32_t>(name, num_tables * row_stride),
          .row_stride = row_stride,
          .num_tables = num_tables,
          .max_blocks = max_blocks,
          .block_size = block_size};
}

MutablePackedBlockTable CarvePacked(const ConversionShape& shape, ArrayCarver& carver) {
  return {.block_indptr = carver.Take<int32_t>("block_indptr", shape.num_rows + 1),
          .block_indices = carver.Take<int32_t>("block_indices", shape.max_indices),
          .last_block_len = carver.Take<int32_t>("last_block_len", shape.num_rows),
          .num_rows = shape.num_rows,
          .max_indices = shape.max_indices,
          .block_size = shape.block_size};
}

// Draws numbers below n, and hostile values.
class Draw {
 public:
  Draw(std::mt19937& random, double hostility) : random_(random), hostility_(hostility) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool IsHostile() { return std::uniform_real_distribution<>()(random_) < hostility_; }
  // Returns `value`, or sometimes an absurd value.
  int32_t Or(int32_t value) {
    if (!IsHostile()) return value;
    const int64_t absurd[] = {-1,
                              INT_MIN,
                              INT_MAX,
                              int64_t{value} + 1,
                              -int64_t{value},
                              Below(100),
                              static_cast<int32_t>(random_())};
    return static_cast<int32_t>(absurd[Below(std::size(absurd))]);
  }

 private:
  std::mt19937& random_;
  double hostility_;
};

// The inputs are in the caller's memory, which is writable.
int32_t* Mutable(const int32_t* array) { return const_cast<int32_t*>(array); }

void DrawPacked(Draw& draw, const PackedBlockTable& packed) {
  for (int i = 0; i < packed.max_indices; ++i) {
    Mutable(packed.block_indices)[i] = draw.Below(1000);
  }
  int32_t next = 0;
  Mutable(packed.block_indptr)[0] = draw.Or(0);
  for (int r = 0; r < packed.num_rows; ++r) {
    const int32_t left = packed.max_indices - next;
    const int32_t num_blocks = draw.Below(3) == 0 ? 0 : draw.Below(std::min(left, 8) + 1);
    next += num_blocks;
    Mutable(packed.block_indptr)[r + 1] = draw.Or(next);
    Mutable(packed.last_block_len)[r] =
        draw.Or(num_blocks == 0 ? 0 : 1 + draw.Below(packed.block_size));
  }
}

// Draws runs of consecutive slots, so that the table can be read in blocks of `run`.
void DrawTable(Draw& draw, const BlockTableView& table, int run) {
  for (int row = 0; row < table.num_tables; ++row) {
    int32_t* const entries = Mutable(table.entries) + row * table.row_stride;
    int32_t first = 0;
    for (int column = 0; column < table.max_blocks; ++column) {
      if (column % run == 0) first = draw.Below(1000) * run;
      entries[column] = first + column % run;
    }
    if (table.max_blocks > 0 && draw.IsHostile()) {
      int32_t& entry = entries[draw.Below(table.max_blocks)];
      entry = draw.Or(entry);
    }
  }
}

}  // namespace

ConvertTablesArgs CarveConversion(const ConversionShape& shape, ArrayCarver& carver) {
  const int num_rows = shape.num_rows;
  const int max_tokens = shape.max_blocks * shape.block_size;
  ConvertTablesArgs args = {.selection = shape.selection, .num_rows = num_rows};
  if (shape.form == ConversionForm::kPackedToPadded) {
    args.packed = CarvePacked(shape, carver);
  } else {
    const bool tokens = shape.form == ConversionForm::kTokensToBlocks;
    args.table = CarveTable("table", num_rows / 2 + 1, tokens ? max_tokens : shape.max_blocks,
                            tokens ? 1 : shape.block_size, carver);
    args.table_row = carver.Take<int32_t>("table_row", num_rows);
    args.key_start = carver.Take<int32_t>("key_start", num_rows);
    args.seq_lens = carver.Take<int32_t>("seq_lens", num_rows);
    args.query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1);
  }
  const bool to_tokens = shape.form == ConversionForm::kBlocksToTokens;
  args.out.table = CarveTable("out.table", num_rows, to_tokens ? max_tokens : shape.max_blocks,
                              to_tokens ? 1 : shape.block_size, carver);
  args.out.seq_lens = carver.Take<int32_t>("out.seq_lens", num_rows);
  args.out.row_faults = carver.Take<int32_t>("out.row_faults", num_rows);
  args.out.num_faults = carver.Take<int32_t>("out.num_faults", 1);
  if (shape.form == ConversionForm::kPaddedToBoth) {
    args.out.packed = CarvePacked(shape, carver);
    args.out.key_start_loc = carver.Take<int32_t>("out.key_start_loc", num_rows + 1);
  }
  return args;
}

void DrawConversion(std::mt19937& random, double hostility, const ConvertTablesArgs& args) {
  Draw draw(random, hostility);
  if (args.packed.block_indptr) return DrawPacked(draw, args.packed);
  const int unit = std::max(args.table.block_size, args.out.table.block_size);
  DrawTable(draw, args.table, unit / args.table.block_size);
  const auto capacity = static_cast<int32_t>(TableCapacity(args.table));
  Mutable(args.query_start_loc)[0] = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const int32_t start = draw.Below(2) == 0 ? 0 : draw.Below(capacity + 1) / unit * unit;
    const int32_t len = draw.Below(4) == 0 ? 0 : draw.Below(capacity - start + 1);
    Mutable(args.table_row)[r] = draw.Or(draw.Below(args.table.num_tables));
    Mutable(args.key_start)[r] = draw.Or(start);
    Mutable(args.seq_lens)[r] = draw.Or(len);
    // After a hostile entry the value may wrap, which is also hostile.
    const int64_t end = int64_t{args.query_start_loc[r]} + draw.Below(std::min(len, 5) + 1);
    Mutable(args.query_start_loc)[r + 1] = draw.Or(static_cast<int32_t>(end));
  }
}

std::vector<RefusedConversion> RefusedConversions() {
  // Arrays are given unless the message is about a missing array. They are not read.
  static int32_t array[1];
  const ConvertTablesArgs padded = {
      .table = {array, 2, 2, 2, 4},
      .seq_lens = array,
      .query_start_loc = array,
      .num_rows = 2,
      .out = {.table = {array, 2, 2, 2, 4}, .packed = {array, array, array, 2, 4, 4}}};
  const ConvertTablesArgs packed = {.packed = {array, array, array, 2, 4, 4},
                                    .num_rows = 2,
                                    .out = {.table = {array, 2, 2, 2, 4}}};
  std::vector<RefusedConversion> cases;
  const auto add = [&cases](ConvertTablesArgs args, auto spoil, std::string message) {
    spoil(args);
    cases.push_back({args, std::move(message)});
  };
  using Args = ConvertTablesArgs;
  add(
      padded, [](Args& a) { a.num_rows = -1; }, "num_rows: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.table.block_size = 0; },
      "table.block_size: expected at least 1, got 0");
  add(
      padded, [](Args& a) { a.table.num_tables = -1; },
      "table.num_tables: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.table.max_blocks = -1; },
      "table.max_blocks: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.table.num_blocks = -1; },
      "table.num_blocks: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.table.row_stride = 0; },
      "table.row_stride: expected at least 2, got 0");
  add(
      padded, [](Args& a) { a.table.entries = nullptr; },
      "table.entries: expected 4 elements, got none");
  add(
      padded, [](Args& a) { a.seq_lens = nullptr; }, "seq_lens: expected 2 elements, got none");
  add(
      padded,
      [](Args& a) {
        a.selection.keys = TableKeys::kComputed;
        a.query_start_loc = nullptr;
      },
      "query_start_loc: expected 3 elements, got none");
  add(
      padded,
      [](Args& a) {
        a.selection = {TableKeys::kWindow, -1};
      },
      "selection.window_left: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.out.table.num_tables = 1; },
      "out.table.num_tables: expected at least 2, got 1");
  add(
      padded, [](Args& a) { a.out.table.row_stride = 1; },
      "out.table.row_stride: expected at least 2, got 1");
  add(
      padded, [](Args& a) { a.out.table.block_size = -4; },
      "out.table.block_size: expected at least 1, got -4");
  add(
      padded, [](Args& a) { a.out.packed.num_rows = 1; },
      "out.packed.num_rows: expected at least 2, got 1");
  add(
      padded, [](Args& a) { a.out.packed.max_indices = -1; },
      "out.packed.max_indices: expected at least 0, got -1");
  add(
      padded, [](Args& a) { a.out.packed.block_indices = nullptr; },
      "out.packed.block_indices: expected 4 elements, got none");
  add(
      padded, [](Args& a) { a.out.packed.last_block_len = nullptr; },
      "out.packed.last_block_len: expected 2 elements, got none");
  add(
      padded, [](Args& a) { a.out.packed.block_size = 1; },
      "out.packed.block_size: expected the input's 4, got 1");
  add(
      padded, [](Args& a) { a.out.table.block_size = 1; },
      "out.table.block_size: expected with out.packed or out.key_start_loc the input's 4, got 1");
  add(
      padded,
      [](Args& a) {
        a.out.packed = {};
        a.out.key_start_loc = array;
        a.out.table.block_size = 1;
      },
      "out.table.block_size: expected with out.packed or out.key_start_loc the input's 4, got 1");
  add(
      packed, [](Args& a) { a.packed.block_size = 0; },
      "packed.block_size: expected at least 1, got 0");
  add(
      packed, [](Args& a) { a.packed.num_rows = 1; },
      "packed.num_rows: expected num_rows 2, got 1");
  add(
      packed, [](Args& a) { a.packed.max_indices = -1; },
      "packed.max_indices: expected at least 0, got -1");
  add(
      packed, [](Args& a) { a.packed.block_indices = nullptr; },
      "packed.block_indices: expected 4 elements, got none");
  add(
      packed, [](Args& a) { a.packed.last_block_len = nullptr; },
      "packed.last_block_len: expected 2 elements, got none");
  add(
      packed, [](Args& a) { a.table.entries = array; },
      "table: expected none with packed, got one");
  add(
      packed, [](Args& a) { a.table_row = array; },
      "table_row: expected none with packed, got one");
  add(
      packed, [](Args& a) { a.key_start = array; },
      "key_start: expected none with packed, got one");
  add(
      packed, [](Args& a) { a.seq_lens = array; }, "seq_lens: expected none with packed, got one");
  add(
      packed, [](Args& a) { a.selection.keys = TableKeys::kComputed; },
      "selection must be kSeqLen with packed: expected all keys, got a part");
  return cases;
}

}  // namespace reprise
