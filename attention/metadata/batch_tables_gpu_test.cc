// Compares the tables of a batch's rows from the device with tables from the host: padded, packed
// and cumulative lengths, for the batches of the host's tests.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

class BatchTablesGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class BatchTablesSmallGpuTest : public BatchTablesGpuTest {};

TableSelection DrawSelection(Random& random) {
  return {.keys = random.Pick({TableKeys::kSeqLen, TableKeys::kComputed, TableKeys::kWindow}),
          .window_left = random.Int(0, 40)};
}

// Returns a conversion with all outputs for batches with the sizes of `sizes`.
ConvertTablesArgs Carve(const PagedBatch& sizes, const BlockTableView& table, int max_indices,
                        const TableSelection& selection, ArrayCarver& carver) {
  const int num_rows = sizes.num_rows;
  PagedBatch batch = {
      .query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1),
      .seq_lens = carver.Take<int32_t>("seq_lens", num_rows),
      .table_row = carver.Take<int32_t>("table_row", num_rows),
      .block_table = carver.Take<int32_t>("block_table", table.num_tables * table.row_stride),
      .block_table_stride = table.row_stride,
      .num_rows = num_rows,
      .num_tables = table.num_tables,
      .max_blocks = table.max_blocks};
  ConvertTablesArgs args = ConversionOf(batch, table.block_size);
  args.selection = selection;
  args.out = {
      .table = {.entries = carver.Take<int32_t>("out.table", int64_t{num_rows} * table.max_blocks),
                .row_stride = table.max_blocks,
                .num_tables = num_rows,
                .max_blocks = table.max_blocks,
                .block_size = table.block_size},
      .seq_lens = carver.Take<int32_t>("out.seq_lens", num_rows),
      .packed = {.block_indptr = carver.Take<int32_t>("block_indptr", num_rows + 1),
                 .block_indices = carver.Take<int32_t>("block_indices", max_indices),
                 .last_block_len = carver.Take<int32_t>("last_block_len", num_rows),
                 .num_rows = num_rows,
                 .max_indices = max_indices,
                 .block_size = table.block_size},
      .key_start_loc = carver.Take<int32_t>("key_start_loc", num_rows + 1),
      .row_faults = carver.Take<int32_t>("row_faults", num_rows),
      .num_faults = carver.Take<int32_t>("num_faults", 1)};
  return args;
}

void Copy(const int32_t* from, int64_t count, const int32_t* to) {
  std::copy_n(from, count, const_cast<int32_t*>(to));
}

void Fill(const PagedBatch& batch, const std::vector<int32_t>& entries,
          const ConvertTablesArgs& args) {
  Copy(batch.query_start_loc, batch.num_rows + 1, args.query_start_loc);
  Copy(batch.seq_lens, batch.num_rows, args.seq_lens);
  Copy(batch.table_row, batch.num_rows, args.table_row);
  Copy(entries.data(), static_cast<int64_t>(entries.size()), args.table.entries);
}

// Compares num_batches batches, each drawn from its own seed. Every 20th batch has up to 300 rows.
void Compare(uint64_t num_batches) {
  for (uint64_t seed = 0; seed < num_batches && !testing::Test::HasFatalFailure(); ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({.max_rows = seed % 20 == 19 ? 300 : 8}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << schedule.Description());
    const ScheduledBatchMemory memory(schedule, {.num_rows = schedule.num_rows() + random.Int(0, 3),
                                                 .num_tokens = schedule.num_tokens()});
    const PagedBatch& batch = memory.built.batch;
    const TableSelection selection = DrawSelection(random);
    BuilderTwins<ConvertTablesArgs> twins(
        [&](ArrayCarver& carver) {
          return Carve(batch, schedule.table(), schedule.num_blocks, selection, carver);
        },
        LaunchConvertTables);
    Fill(batch, schedule.entries, twins.args());
    ASSERT_EQ(twins.Compare(ConvertTablesOnHost), "");
    ASSERT_EQ(*twins.args().out.num_faults, 0);
  }
}

TEST_F(BatchTablesGpuTest, AllFormsMatchTheHost) { Compare(5000); }

TEST_F(BatchTablesSmallGpuTest, AllFormsMatchTheHost) { Compare(20); }

TEST_F(BatchTablesGpuTest, ReplayedGraphMatchesTheHost) {
  const uint64_t seed = 3;
  Random random(seed);
  const BlockTableView shape = {
      .row_stride = 80, .num_tables = 64, .max_blocks = 75, .block_size = 4};
  BuilderTwins<ConvertTablesArgs> twins(
      [&](ArrayCarver& carver) {
        return Carve({.num_rows = 64}, shape, 64 * 75,
                     {.keys = TableKeys::kWindow, .window_left = 100}, carver);
      },
      LaunchConvertTables);
  for (int replay = 0; replay < 200; ++replay) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", replay " << replay);
    std::vector<int32_t> loc = {0}, lens, table_row, entries(64 * 80);
    for (int32_t& entry : entries) entry = random.Int(0, 9999);
    const int num_live = replay % 2 == 0 ? 64 : random.Int(0, 5);
    for (int r = 0; r < 64; ++r) {
      lens.push_back(r < num_live ? random.Int(0, 300) : 0);
      loc.push_back(loc.back() + std::min(lens.back(), random.Int(0, 3)));
      table_row.push_back(random.Int(0, 63));
    }
    twins.Poison();
    Fill({.query_start_loc = loc.data(),
          .seq_lens = lens.data(),
          .table_row = table_row.data(),
          .num_rows = 64},
         entries, twins.args());
    ASSERT_EQ(twins.Compare(ConvertTablesOnHost), "");
  }
}

}  // namespace
}  // namespace reprise
