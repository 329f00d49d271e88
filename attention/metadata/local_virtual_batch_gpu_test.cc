// Compares virtual rows from the device with virtual rows from the host, field by field.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

class LocalVirtualBatchGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class LocalVirtualBatchSmallGpuTest : public LocalVirtualBatchGpuTest {};

struct HostRows {
  explicit HostRows(int max_rows)
      : query_start_loc(max_rows + 1),
        seq_lens(max_rows),
        table_row(max_rows),
        key_start(max_rows) {}

  LocalBatchBuffers buffers() {
    return {.query_start_loc = query_start_loc.data(),
            .seq_lens = seq_lens.data(),
            .table_row = table_row.data(),
            .key_start = key_start.data(),
            .max_rows = static_cast<int>(seq_lens.size())};
  }

  std::vector<int32_t> query_start_loc, seq_lens, table_row, key_start;
};

// Device arrays for batches of one shape. The addresses do not change.
class Twins {
 public:
  Twins(const PaddedSize& padded, int chunk_size)
      : padded_(padded),
        chunk_size_(chunk_size),
        max_rows_(MaxLocalRows(padded.num_rows, padded.num_tokens, chunk_size)),
        query_start_loc_(padded.num_rows + 1),
        seq_lens_(padded.num_rows),
        table_row_(padded.num_rows),
        key_start_(padded.num_rows),
        out_query_start_loc_(max_rows_ + 1),
        out_seq_lens_(max_rows_),
        out_table_row_(max_rows_),
        out_key_start_(max_rows_),
        row_faults_(padded.num_rows),
        num_faults_(1) {}

  // Returns `host` with device arrays. Optional arrays that `host` lacks stay absent.
  PagedBatch DeviceBatch(const PagedBatch& host) const {
    PagedBatch batch = host;
    batch.query_start_loc = query_start_loc_.data();
    batch.seq_lens = seq_lens_.data();
    if (host.table_row) batch.table_row = table_row_.data();
    if (host.key_start) batch.key_start = key_start_.data();
    return batch;
  }

  void Upload(const PagedBatch& host) {
    const auto rows = static_cast<size_t>(padded_.num_rows);
    query_start_loc_.Upload({host.query_start_loc, rows + 1});
    seq_lens_.Upload({host.seq_lens, rows});
    if (host.table_row) table_row_.Upload({host.table_row, rows});
    if (host.key_start) key_start_.Upload({host.key_start, rows});
    for (DeviceArray<int32_t>* out : {&out_query_start_loc_, &out_seq_lens_, &out_table_row_,
                                      &out_key_start_, &row_faults_, &num_faults_}) {
      out->Poison();
    }
  }

  absl::Status Launch(const PagedBatch& host, cudaStream_t stream) const {
    return LaunchLocalVirtualBatch({.batch = DeviceBatch(host),
                                    .chunk_size = chunk_size_,
                                    .buffers = {.query_start_loc = out_query_start_loc_.data(),
                                                .seq_lens = out_seq_lens_.data(),
                                                .table_row = out_table_row_.data(),
                                                .key_start = out_key_start_.data(),
                                                .max_rows = max_rows_},
                                    .row_faults = row_faults_.data(),
                                    .num_faults = num_faults_.data()},
                                   stream);
  }

  // Returns the device's virtual rows of `host`.
  PagedBatch DeviceLocal(const PagedBatch& host) const {
    PagedBatch local = host;
    local.query_start_loc = out_query_start_loc_.data();
    local.seq_lens = out_seq_lens_.data();
    local.table_row = out_table_row_.data();
    local.key_start = out_key_start_.data();
    return local;
  }

  void ExpectTheHosts(const PagedBatch& host) const {
    HostRows rows(max_rows_);
    std::vector<int32_t> row_faults(padded_.num_rows), num_faults(1);
    LocalVirtualBatchOnHost({.batch = host,
                             .chunk_size = chunk_size_,
                             .buffers = rows.buffers(),
                             .row_faults = row_faults.data(),
                             .num_faults = num_faults.data()});
    ASSERT_EQ(out_query_start_loc_.Download(), rows.query_start_loc);
    ASSERT_EQ(out_seq_lens_.Download(), rows.seq_lens);
    ASSERT_EQ(out_table_row_.Download(), rows.table_row);
    ASSERT_EQ(out_key_start_.Download(), rows.key_start);
    ASSERT_EQ(row_faults_.Download(), row_faults);
    ASSERT_EQ(num_faults_.Download(), num_faults);
  }

 private:
  PaddedSize padded_;
  int chunk_size_;
  int max_rows_;
  DeviceArray<int32_t> query_start_loc_, seq_lens_, table_row_, key_start_;
  DeviceArray<int32_t> out_query_start_loc_, out_seq_lens_, out_table_row_, out_key_start_;
  DeviceArray<int32_t> row_faults_, num_faults_;
};

// Compares num_batches batches. Each is drawn from its own seed, as in the host's tests.
void CompareEager(uint64_t num_batches) {
  for (uint64_t seed = 0; seed < num_batches && !testing::Test::HasFatalFailure(); ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    const int chunk_size = random.Pick({1, 4, 16, random.Int(1, 64)});
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", chunk " << chunk_size << ", " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 3),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 9)};
    const ScheduledBatchMemory memory(schedule, padded);
    PagedBatch batch = memory.built.batch;
    std::vector<int32_t> key_start(padded.num_rows);
    if (random.OneIn(4)) {
      for (int32_t& start : key_start) start = random.Int(0, 100);
      batch.key_start = key_start.data();
    }
    if (random.OneIn(4)) batch.table_row = nullptr;
    Twins twins(padded, chunk_size);
    twins.Upload(batch);
    ASSERT_EQ(twins.Launch(batch, nullptr), absl::OkStatus());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    twins.ExpectTheHosts(batch);
  }
}

TEST_F(LocalVirtualBatchGpuTest, MatchesTheHost) { CompareEager(20000); }

TEST_F(LocalVirtualBatchSmallGpuTest, MatchesTheHost) { CompareEager(30); }

// 200 replays each for decode, verification and chunked prefill, with large and small batches in
// turn.
TEST_F(LocalVirtualBatchGpuTest, ReplayedGraphMatchesTheHost) {
  const uint64_t seed = 3;
  Random random(seed);
  for (const auto& [max_rows, max_query_len, chunk_size] :
       std::vector<std::tuple<int, int, int>>{{64, 1, 16}, {40, 5, 8}, {8, 120, 7}, {8, 40, 1}}) {
    const PaddedSize padded = {.num_rows = max_rows, .num_tokens = max_rows * max_query_len};
    Twins twins(padded, chunk_size);
    const ScheduledBatchMemory empty(Schedule{}, padded);
    CapturedWork graph([&, chunk_size = chunk_size](cudaStream_t stream) {
      ASSERT_EQ(twins.Launch(empty.built.batch, stream), absl::OkStatus());
    });
    for (int replay = 0; replay < 200; ++replay) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", chunk " << chunk_size << ", replay " << replay);
      const int longest = replay % 2 == 0 ? 300 : 20;
      Schedule schedule = DrawSchedule(
          {.max_rows = replay % 2 == 0 ? max_rows : 2, .max_seq_len = longest}, random);
      for (BatchSequence& sequence : schedule.sequences) {
        const int beyond = std::max(0, sequence.query_len - max_query_len);
        sequence.num_computed += beyond;
        sequence.query_len -= beyond;
      }
      const ScheduledBatchMemory memory(schedule, padded);
      twins.Upload(memory.built.batch);
      graph.Replay();
      twins.ExpectTheHosts(memory.built.batch);
      if (HasFatalFailure()) return;
    }
  }
}

// Includes more rows and virtual rows than threads per CTA.
TEST_F(LocalVirtualBatchGpuTest, MatchesTheHostForAnyNumberOfRows) {
  Random random(4);
  for (int num_rows : {1, 31, 32, 33, 256, 1023, 1024, 1025, 3000}) {
    for (int chunk_size : {1, 3, 1000}) {
      SCOPED_TRACE(testing::Message() << num_rows << " rows, chunk " << chunk_size);
      std::vector<int32_t> query_start_loc = {0};
      std::vector<int32_t> seq_lens;
      for (int r = 0; r < num_rows; ++r) {
        const int query_len = random.Pick({0, 1, random.Int(0, 30)});
        query_start_loc.push_back(query_start_loc.back() + query_len);
        seq_lens.push_back(random.OneIn(9) ? 0 : query_len + random.Int(1, 5000));
      }
      const PagedBatch batch = {.query_start_loc = query_start_loc.data(),
                                .seq_lens = seq_lens.data(),
                                .num_rows = num_rows,
                                .num_tokens = query_start_loc.back() + 7,
                                .max_query_len = 30,
                                .max_seq_len = 6000,
                                .num_tables = num_rows};
      Twins twins({.num_rows = num_rows, .num_tokens = batch.num_tokens}, chunk_size);
      twins.Upload(batch);
      ASSERT_EQ(twins.Launch(batch, nullptr), absl::OkStatus());
      twins.ExpectTheHosts(batch);
    }
  }
}

// Converts virtual rows from the device to a table with one row per virtual row.
TEST_F(LocalVirtualBatchGpuTest, ConvertedTablesMatchTheHost) {
  const uint64_t seed = 6;
  Random random(seed);
  for (int i = 0; i < 500 && !HasFatalFailure(); ++i) {
    const Schedule schedule = DrawSchedule({.max_block_size = 8}, random);
    const int width = random.Int(1, 8);
    const int chunk_size = schedule.block_size * width;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", batch " << i << ", chunk "
                                    << chunk_size << ", " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 3),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 9)};
    const ScheduledBatchMemory memory(schedule, padded);
    const int max_rows = MaxLocalRows(padded.num_rows, padded.num_tokens, chunk_size);
    HostRows host_rows(max_rows);
    const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(
        {.batch = memory.built.batch, .chunk_size = chunk_size, .buffers = host_rows.buffers()});
    ASSERT_TRUE(local.ok()) << local.status();
    std::vector<int32_t> host_entries(static_cast<size_t>(max_rows) * width), host_lens(max_rows);
    ConvertTablesArgs args = ConversionOf(*local, schedule.block_size);
    args.out = {.table = {.entries = host_entries.data(),
                          .row_stride = width,
                          .num_tables = max_rows,
                          .max_blocks = width,
                          .block_size = schedule.block_size},
                .seq_lens = host_lens.data()};
    ASSERT_EQ(ConvertTables(args), absl::OkStatus());
    Twins twins(padded, chunk_size);
    twins.Upload(memory.built.batch);
    ASSERT_EQ(twins.Launch(memory.built.batch, nullptr), absl::OkStatus());
    DeviceArray<int32_t> table(schedule.entries.size()), entries(host_entries.size());
    DeviceArray<int32_t> lens(max_rows), faults(max_rows), num_faults(1);
    table.Upload(schedule.entries);
    PagedBatch on_device = twins.DeviceLocal(*local);
    on_device.block_table = table.data();
    ConvertTablesArgs device_args = ConversionOf(on_device, schedule.block_size);
    device_args.out = args.out;
    device_args.out.table.entries = entries.data();
    device_args.out.seq_lens = lens.data();
    device_args.out.row_faults = faults.data();
    device_args.out.num_faults = num_faults.data();
    ASSERT_EQ(LaunchConvertTables(device_args, nullptr), absl::OkStatus());
    ASSERT_EQ(entries.Download(), host_entries);
    ASSERT_EQ(lens.Download(), host_lens);
    ASSERT_EQ(num_faults.Download(), std::vector<int32_t>{0});
    // With a narrower input table, rows beyond its width become empty and have a fault.
    device_args.table.max_blocks /= 2;
    ASSERT_EQ(LaunchConvertTables(device_args, nullptr), absl::OkStatus());
    std::vector<int32_t> host_faults(max_rows);
    for (int v = 0; v < max_rows; ++v) {
      if (host_lens[v] > 0 && host_rows.key_start[v] + host_lens[v] >
                                  device_args.table.max_blocks * schedule.block_size) {
        host_lens[v] = 0;
        host_faults[v] = static_cast<int32_t>(RowFault::kLength);
      }
    }
    ASSERT_EQ(lens.Download(), host_lens);
    ASSERT_EQ(faults.Download(), host_faults);
    ASSERT_EQ(num_faults.Download()[0],
              max_rows - std::count(host_faults.begin(), host_faults.end(), 0));
  }
}

// Arrays of random values, which BuildLocalVirtualBatch() would reject. The host form and the
// device form write the same values.
TEST_F(LocalVirtualBatchGpuTest, InvalidArraysDoNotCauseWritesOutsideTheBuffers) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const int num_rows = random.Int(1, 70);
    std::vector<int32_t> loc(num_rows + 1), lens(num_rows), key_start(num_rows);
    for (auto* array : {&loc, &lens, &key_start}) {
      for (int32_t& value : *array) {
        value = random.Pick({static_cast<int32_t>(random.Bits()), random.Int(-3, 300), INT32_MAX});
      }
    }
    const PagedBatch batch = {.query_start_loc = loc.data(),
                              .seq_lens = lens.data(),
                              .key_start = key_start.data(),
                              .num_rows = num_rows,
                              .num_tokens = random.Int(0, 200)};
    Twins twins({.num_rows = num_rows, .num_tokens = batch.num_tokens}, random.Int(1, 20));
    twins.Upload(batch);
    ASSERT_EQ(twins.Launch(batch, nullptr), absl::OkStatus());
    twins.ExpectTheHosts(batch);
  }
}

}  // namespace
}  // namespace reprise
