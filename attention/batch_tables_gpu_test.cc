// Tables made on the device are those of the host: padded, packed, cumulative lengths, unpacked.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/batch_tables.h"
#include "attention/batch_tables_kernel.h"
#include "attention/testing/device_array.h"
#include "attention/testing/schedule_generator.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

class BatchTablesGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class BatchTablesSmallGpuTest : public BatchTablesGpuTest {};

struct HostTables {
  HostTables(int num_rows, int max_blocks, int max_indices)
      : entries(static_cast<size_t>(num_rows) * max_blocks),
        seq_lens(num_rows),
        indptr(num_rows + 1),
        indices(max_indices),
        last(num_rows),
        key_start_loc(num_rows + 1),
        max_blocks(max_blocks) {}

  MutablePaddedBlockTable padded() {
    return {.entries = absl::MakeSpan(entries),
            .row_stride = max_blocks,
            .max_blocks = max_blocks,
            .seq_lens = absl::MakeSpan(seq_lens)};
  }
  MutablePackedBlockTable packed() {
    return {.block_indptr = absl::MakeSpan(indptr),
            .block_indices = absl::MakeSpan(indices),
            .last_block_len = absl::MakeSpan(last)};
  }

  std::vector<int32_t> entries, seq_lens, indptr, indices, last, key_start_loc;
  int max_blocks;
};

// A shape on the device: inputs, all forms of output, and a second padded table for the way back.
class Twins {
 public:
  Twins(int num_rows, const BlockTableView& table, int max_blocks, int max_indices)
      : shape_(table),
        num_rows_(num_rows),
        max_blocks_(max_blocks),
        loc_(num_rows + 1),
        lens_(num_rows),
        table_row_(num_rows),
        table_(table.num_tables * table.row_stride),
        entries_(static_cast<size_t>(num_rows) * max_blocks),
        seq_lens_(num_rows),
        indptr_(num_rows + 1),
        indices_(max_indices),
        last_(num_rows),
        key_start_loc_(num_rows + 1),
        unpacked_entries_(entries_.size()),
        unpacked_lens_(num_rows),
        bad_(2) {}

  void Upload(const PagedBatch& batch, const std::vector<int32_t>& entries) {
    const auto rows = static_cast<size_t>(num_rows_);
    loc_.Upload({batch.query_start_loc, rows + 1});
    lens_.Upload({batch.seq_lens, rows});
    table_row_.Upload({batch.table_row, rows});
    table_.Upload(entries);
    for (auto* out : {&entries_, &seq_lens_, &indptr_, &indices_, &last_, &key_start_loc_,
                      &unpacked_entries_, &unpacked_lens_, &bad_}) {
      out->Poison();
    }
  }

  void Launch(const TableSelection& selection, cudaStream_t stream) const {
    BlockTableView table = shape_;
    table.entries = table_.data();
    const PagedBatch batch = {.query_start_loc = loc_.data(),
                              .seq_lens = lens_.data(),
                              .table_row = table_row_.data(),
                              .num_rows = num_rows_};
    const DeviceTables out = {.entries = entries_.data(),
                              .row_stride = max_blocks_,
                              .max_blocks = max_blocks_,
                              .seq_lens = seq_lens_.data(),
                              .block_indptr = indptr_.data(),
                              .block_indices = indices_.data(),
                              .max_indices = static_cast<int>(indices_.size()),
                              .last_block_len = last_.data(),
                              .key_start_loc = key_start_loc_.data(),
                              .num_bad_rows = bad_.data()};
    ASSERT_EQ(LaunchGatherTables(batch, table, selection, out, stream), cudaSuccess);
    const DeviceTables unpacked = {.entries = unpacked_entries_.data(),
                                   .row_stride = max_blocks_,
                                   .max_blocks = max_blocks_,
                                   .seq_lens = unpacked_lens_.data(),
                                   .num_bad_rows = bad_.data() + 1};
    ASSERT_EQ(LaunchUnpackTable({.block_indptr = indptr_.data(),
                                 .block_indices = indices_.data(),
                                 .last_block_len = last_.data(),
                                 .num_rows = num_rows_,
                                 .num_indices = static_cast<int>(indices_.size())},
                                shape_.block_size, unpacked, stream),
              cudaSuccess);
  }

  void ExpectTheHosts(const PagedBatch& batch, const BlockTableView& table,
                      const TableSelection& selection) const {
    HostTables host(num_rows_, max_blocks_, static_cast<int>(indices_.size()));
    ASSERT_TRUE(GatherPaddedTable(batch, table, host.padded(), selection).ok());
    const absl::StatusOr<int> num_indices =
        GatherPackedTable(batch, table, host.packed(), selection);
    ASSERT_TRUE(num_indices.ok()) << num_indices.status();
    for (int r = 0; r < num_rows_; ++r) {
      host.key_start_loc[r + 1] = host.key_start_loc[r] + host.seq_lens[r];
    }
    ASSERT_EQ(entries_.Download(), host.entries);
    ASSERT_EQ(seq_lens_.Download(), host.seq_lens);
    ASSERT_EQ(indptr_.Download(), host.indptr);
    ASSERT_EQ(last_.Download(), host.last);
    ASSERT_EQ(key_start_loc_.Download(), host.key_start_loc);
    std::vector<int32_t> indices = indices_.Download();
    indices.resize(*num_indices);
    host.indices.resize(*num_indices);
    ASSERT_EQ(indices, host.indices);
    ASSERT_EQ(unpacked_entries_.Download(), host.entries);
    ASSERT_EQ(unpacked_lens_.Download(), host.seq_lens);
    ASSERT_EQ(bad_.Download(), (std::vector<int32_t>{0, 0}));
  }

  std::vector<int32_t> DownloadLens() const { return seq_lens_.Download(); }
  std::vector<int32_t> DownloadIndptr() const { return indptr_.Download(); }
  std::vector<int32_t> DownloadBad() const { return bad_.Download(); }

 private:
  BlockTableView shape_;
  int num_rows_;
  int max_blocks_;
  DeviceArray<int32_t> loc_, lens_, table_row_, table_;
  mutable DeviceArray<int32_t> entries_, seq_lens_, indptr_, indices_, last_, key_start_loc_;
  mutable DeviceArray<int32_t> unpacked_entries_, unpacked_lens_, bad_;
};

TableSelection DrawSelection(Random& random) {
  return {
      .blocks = random.Pick({TableBlocks::kSeqLen, TableBlocks::kComputed, TableBlocks::kWindow}),
      .window_left = random.Int(0, 40)};
}

// The batches of the host's tests: each from its seed. Now and then one of many rows.
void Compare(uint64_t num_batches) {
  for (uint64_t seed = 0; seed < num_batches && !testing::Test::HasFatalFailure(); ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({.max_rows = seed % 20 == 19 ? 300 : 8}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << schedule.Description());
    const ScheduledBatchMemory memory(schedule, {.num_rows = schedule.num_rows() + random.Int(0, 3),
                                                 .num_tokens = schedule.num_tokens()});
    const PagedBatch& batch = memory.built.batch;
    const TableSelection selection = DrawSelection(random);
    Twins twins(batch.num_rows, schedule.table(), schedule.max_blocks + random.Int(0, 2),
                schedule.num_blocks);
    twins.Upload(batch, schedule.entries);
    twins.Launch(selection, nullptr);
    twins.ExpectTheHosts(batch, schedule.table(), selection);
  }
}

TEST_F(BatchTablesGpuTest, AllFormsAgreeWithTheHost) { Compare(20000); }

TEST_F(BatchTablesSmallGpuTest, AllFormsAgreeWithTheHost) { Compare(20); }

TEST_F(BatchTablesGpuTest, AReplayedGraphMakesTheTablesOfEachBatch) {
  const uint64_t seed = 3;
  Random random(seed);
  const BlockTableView shape = {
      .row_stride = 80, .num_tables = 64, .max_blocks = 75, .block_size = 4};
  Twins twins(64, shape, 75, 64 * 75);
  const TableSelection selection = {.blocks = TableBlocks::kWindow, .window_left = 100};
  CapturedWork graph([&](cudaStream_t stream) { twins.Launch(selection, stream); });
  for (int replay = 0; replay < 200 && !HasFatalFailure(); ++replay) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", replay " << replay);
    std::vector<int32_t> loc = {0}, lens, table_row, entries(64 * 80);
    for (int32_t& entry : entries) entry = random.Int(0, 9999);
    const int num_live = replay % 2 == 0 ? 64 : random.Int(0, 5);
    for (int r = 0; r < 64; ++r) {
      lens.push_back(r < num_live ? random.Int(0, 300) : 0);
      loc.push_back(loc.back() + std::min(lens.back(), random.Int(0, 3)));
      table_row.push_back(random.Int(0, 63));
    }
    const PagedBatch batch = {.query_start_loc = loc.data(),
                              .seq_lens = lens.data(),
                              .table_row = table_row.data(),
                              .num_rows = 64};
    BlockTableView table = shape;
    table.entries = entries.data();
    twins.Upload(batch, entries);
    graph.Replay();
    twins.ExpectTheHosts(batch, table, selection);
  }
}

TEST_F(BatchTablesGpuTest, RowsThatCannotBeServedAreEmptyAndCounted) {
  const std::vector<int32_t> entries = {1, 2, 3, 4, 5, 6};
  const BlockTableView shape = {.row_stride = 3, .num_tables = 2, .max_blocks = 3, .block_size = 2};
  // Good (2 blocks); table row 7; negative; wider than the table; good (3 blocks); does not fit;
  // neither does what would fit alone.
  const std::vector<int32_t> lens = {4, 2, -3, 7, 5, 2, 1};
  const std::vector<int32_t> table_row = {0, 7, 0, 0, 1, 1, 0};
  const std::vector<int32_t> loc(8, 0);
  const PagedBatch batch = {.query_start_loc = loc.data(),
                            .seq_lens = lens.data(),
                            .table_row = table_row.data(),
                            .num_rows = 7};
  Twins twins(7, shape, 3, /*max_indices=*/5);
  twins.Upload(batch, entries);
  twins.Launch({}, nullptr);
  EXPECT_EQ(twins.DownloadLens(), (std::vector<int32_t>{4, 0, 0, 0, 5, 0, 0}));
  EXPECT_EQ(twins.DownloadIndptr(), (std::vector<int32_t>{0, 2, 2, 2, 2, 5, 5, 5}));
  EXPECT_EQ(twins.DownloadBad(), (std::vector<int32_t>{5, 0}));
}

TEST_F(BatchTablesGpuTest, APackedTableThatLiesGivesEmptyRows) {
  DeviceArray<int32_t> indptr(6), indices(4), last(5), entries(15), lens(5), bad(1);
  // Good; last_block_len 0; descending; beyond the indices; last_block_len 3 of 2.
  indptr.Upload(std::vector<int32_t>{0, 2, 3, 1, 9, 4});
  indices.Upload(std::vector<int32_t>{11, 12, 13, 14});
  last.Upload(std::vector<int32_t>{1, 0, 1, 1, 3});
  const DeviceTables out = {.entries = entries.data(),
                            .row_stride = 3,
                            .max_blocks = 3,
                            .seq_lens = lens.data(),
                            .num_bad_rows = bad.data()};
  ASSERT_EQ(LaunchUnpackTable({.block_indptr = indptr.data(),
                               .block_indices = indices.data(),
                               .last_block_len = last.data(),
                               .num_rows = 5,
                               .num_indices = 4},
                              2, out, nullptr),
            cudaSuccess);
  EXPECT_EQ(lens.Download(), (std::vector<int32_t>{3, 0, 0, 0, 0}));
  EXPECT_EQ(bad.Download(), (std::vector<int32_t>{4}));
  EXPECT_EQ(entries.Download(),
            (std::vector<int32_t>{11, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace reprise
