#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

constexpr int kNumTables = 7;

struct GatherShape {
  SeqLenForm form = SeqLenForm::kWithStep;
  bool from_tokens = false;  // the input is a token table
  int block_size = 0;
  int max_blocks = 0;  // per table row
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;

  int max_keys() const { return max_blocks * block_size; }
  int num_blocks() const { return 1 + kNumTables * max_blocks; }
};

// The arguments of the builder and of the table conversion before it.
struct GatherStepArgs {
  BatchGatherArgs gather;
  ConvertTablesArgs convert;
};

GatherStepArgs CarveGather(const GatherShape& shape, ArrayCarver& carver) {
  GatherStepArgs args;
  BatchGatherArgs& gather = args.gather;
  gather.table_row = carver.Take<int32_t>("in.table_row", shape.num_rows);
  gather.query_lens = carver.Take<int32_t>("in.query_lens", shape.num_rows);
  gather.seq_lens = carver.Take<int32_t>("in.seq_lens", shape.num_rows);
  gather.num_live_rows = carver.Take<int32_t>("in.num_live_rows", 1);
  gather.seq_len_form = shape.form;
  gather.num_rows = shape.num_rows;
  gather.num_tokens = shape.num_tokens;
  gather.max_query_len = shape.max_query_len;
  gather.max_seq_len = shape.max_keys();
  gather.arrays = {.positions = carver.Take<int32_t>("positions", shape.num_tokens),
                   .slot_mapping = carver.Take<int64_t>("slot_mapping", shape.num_tokens),
                   .query_start_loc = carver.Take<int32_t>("query_start_loc", shape.num_rows + 1),
                   .seq_lens = carver.Take<int32_t>("seq_lens", shape.num_rows),
                   .table_row = carver.Take<int32_t>("table_row", shape.num_rows)};
  const int64_t stride = shape.max_blocks + 1;
  int32_t* const entries = carver.Take<int32_t>("entries", kNumTables * stride);
  gather.table = {.entries = entries,
                  .row_stride = stride,
                  .num_tables = kNumTables,
                  .max_blocks = shape.max_blocks,
                  .block_size = shape.block_size,
                  .num_blocks = shape.num_blocks()};
  const int64_t token_stride = shape.max_keys() + 3;
  args.convert = {.table = {.entries = carver.Take<int32_t>("in.tokens", kNumTables * token_stride),
                            .row_stride = token_stride,
                            .num_tables = kNumTables,
                            .max_blocks = shape.max_keys(),
                            .block_size = 1,
                            .num_blocks = shape.num_blocks() * shape.block_size},
                  .seq_lens = carver.Take<int32_t>("in.token_lens", kNumTables),
                  .num_rows = kNumTables,
                  .out = {.table = {.entries = entries,
                                    .row_stride = stride,
                                    .num_tables = kNumTables,
                                    .max_blocks = shape.max_blocks,
                                    .block_size = shape.block_size}}};
  return args;
}

// The values drawn by a fill.
struct Drawn {
  std::vector<int32_t> query_lens;  // one per live row
  std::vector<int32_t> table_rows;
  std::vector<int32_t> keys;  // one per table row, including this step's keys
};

Drawn DrawGather(Random& random, const GatherShape& shape, GatherStepArgs& args) {
  const auto set = [](const int32_t* array, int64_t at, int64_t value) {
    const_cast<int32_t*>(array)[at] = static_cast<int32_t>(value);
  };
  const auto garbage = [&] { return random.Pick({-12345, 1 << 30, -1, 0}); };
  Drawn drawn;
  drawn.table_rows.resize(kNumTables);
  std::iota(drawn.table_rows.begin(), drawn.table_rows.end(), 0);
  random.Shuffle(drawn.table_rows);
  drawn.keys.assign(kNumTables, 0);
  const int num_live = random.Int(0, std::min(shape.num_rows, kNumTables));
  int room = shape.num_tokens;
  for (int r = 0; r < shape.num_rows; ++r) {
    const bool is_live = r < num_live;
    const int longest = std::min(shape.max_query_len, room);
    const int query_len = std::min(random.Pick({0, 1, 1, random.Int(1, longest + 1)}), longest);
    if (is_live) {
      room -= query_len;
      drawn.query_lens.push_back(query_len);
      const int num_keys = random.Pick({query_len, random.Int(query_len, shape.max_keys())});
      drawn.keys[drawn.table_rows[r]] = num_keys;
      const int uncounted = shape.form == SeqLenForm::kWithStep        ? 0
                            : shape.form == SeqLenForm::kWithoutDrafts ? query_len - 1
                                                                       : query_len;
      set(args.gather.seq_lens, r, num_keys - uncounted);
    } else {
      set(args.gather.seq_lens, r, garbage());
    }
    set(args.gather.table_row, r, is_live ? drawn.table_rows[r] : garbage());
    set(args.gather.query_lens, r, is_live ? query_len : garbage());
  }
  set(args.gather.num_live_rows, 0, num_live);

  // Shuffled blocks. Entries after the blocks with keys are garbage. If the input is a token table,
  // the step writes the block table.
  std::vector<int32_t> blocks(shape.num_blocks() - 1);
  std::iota(blocks.begin(), blocks.end(), 1);
  random.Shuffle(blocks);
  const BlockTableView& table = args.gather.table;
  const BlockTableView& tokens = args.convert.table;
  for (int row = 0; row < kNumTables; ++row) {
    set(args.convert.seq_lens, row, drawn.keys[row]);
    for (int64_t column = 0; column < table.row_stride; ++column) {
      const bool is_used = column * shape.block_size < drawn.keys[row];
      set(table.entries, row * table.row_stride + column,
          is_used && !shape.from_tokens ? blocks[row * shape.max_blocks + column] : garbage());
    }
    for (int64_t key = 0; key < tokens.row_stride; ++key) {
      const int64_t block = row * shape.max_blocks + key / shape.block_size;
      set(tokens.entries, row * tokens.row_stride + key,
          key < drawn.keys[row] ? int64_t{blocks[block]} * shape.block_size + key % shape.block_size
                                : garbage());
    }
  }
  return drawn;
}

std::vector<SeenKey> GatherByDefinition(const Drawn& drawn, std::optional<int> window_left) {
  std::vector<SeenKey> seen;
  int token = 0;
  for (size_t r = 0; r < drawn.query_lens.size(); ++r) {
    const int32_t row = drawn.table_rows[r];
    for (int i = 0; i < drawn.query_lens[r]; ++i, ++token) {
      const int64_t position = drawn.keys[row] - drawn.query_lens[r] + i;
      for (int64_t key = 0; key <= position; ++key) {
        if (window_left && key < position - *window_left) continue;
        seen.push_back({token, position, row, key, key});
      }
    }
  }
  return seen;
}

}  // namespace

std::string AttendThroughGather(const DraftAttentionDevice& device,
                                const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  GatherShape shape = {.form = random.Pick({SeqLenForm::kBeforeStep, SeqLenForm::kWithoutDrafts,
                                            SeqLenForm::kWithStep}),
                       .from_tokens = random.OneIn(2),
                       .block_size = random.Pick({1, 3, 4, 16}),
                       .num_rows = random.Int(1, 6),
                       .max_query_len = random.Pick({1, 5, 24})};
  if (shape.from_tokens) shape.block_size = random.Pick({3, 4, 16});
  shape.max_blocks = NumBlocksFor(random.Pick({24, 60, 150}), shape.block_size);
  shape.num_tokens = shape.num_rows * shape.max_query_len + random.Int(0, 3);
  const AttentionParams layer = DrawLayer(random);
  BuilderMemory<GatherStepArgs> host(
      [&](ArrayCarver& carver) { return CarveGather(shape, carver); });
  OnDevice<GatherStepArgs> on_device(device, host);
  // Keys are written through the token table, which refers to the same blocks.
  const BlockTableView& tokens = host.args().convert.table;
  Attended attended(device, types, host.args().gather.table, shape.num_tokens);
  attended.Plan(layer, GatherBatch(on_device.args().gather));
  Drawn drawn;
  const Suite suite = {
      .fill =
          [&] {
            host.Poison();
            drawn = DrawGather(random, shape, host.args());
            on_device.Upload(host);
            attended.Clear();
            for (int row = 0; row < kNumTables; ++row) {
              for (int64_t place = 0; place < drawn.keys[row]; ++place) {
                attended.Write(tokens.entries[row * tokens.row_stride + place], row, place);
              }
            }
            attended.Upload();
          },
      .step =
          [&] {
            if (shape.from_tokens) device.convert(on_device.args().convert);
            device.gather(on_device.args().gather);
            return attended.Run();
          },
      .difference =
          [&] {
            return Difference(types, attended.out(), attended.lse(),
                              Attend(types, GatherByDefinition(drawn, layer.window_left),
                                     shape.num_tokens, nullptr, OwnRow));
          }};
  const std::string difference = RunSuite(device, suite);
  if (difference.empty()) return difference;
  return difference + " (block_size " + std::to_string(shape.block_size) + ", max_blocks " +
         std::to_string(shape.max_blocks) + ", rows " + std::to_string(shape.num_rows) +
         ", tokens " + std::to_string(shape.num_tokens) +
         (shape.from_tokens ? ", from tokens)" : ")");
}

}  // namespace reprise
