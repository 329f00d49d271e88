// Compares batches gathered on the device with batches gathered on the host, field by field, for
// valid and for invalid inputs.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

class BatchGatherGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class BatchGatherSmallGpuTest : public BatchGatherGpuTest {};

struct Inputs {
  std::vector<int32_t> table_row, query_lens, seq_lens, key_start;
  int32_t num_live_rows = 0;
};

// Memory of one shape for inputs and outputs on host and device. The addresses do not change.
class Twins {
 public:
  Twins(const PaddedSize& padded, const BlockTableView& table_shape)
      : table_row_(padded.num_rows),
        query_lens_(padded.num_rows),
        seq_lens_(padded.num_rows),
        key_start_(padded.num_rows),
        num_live_rows_(1),
        entries_(table_shape.num_tables * table_shape.row_stride),
        out_ints_(5 * padded.num_rows + 2 + padded.num_tokens),
        out_slots_(padded.num_tokens),
        host_ints_(out_ints_.size()),
        host_slots_(padded.num_tokens) {
    gather_.table = table_shape;
    gather_.num_rows = padded.num_rows;
    gather_.num_tokens = padded.num_tokens;
    gather_.max_query_len = padded.num_tokens;
    gather_.max_seq_len = table_shape.max_blocks * table_shape.block_size;
  }

  BatchGatherArgs& gather() { return gather_; }

  void Upload(const Inputs& inputs, const std::vector<int32_t>& entries) {
    inputs_ = inputs;
    table_row_.Upload(inputs.table_row);
    query_lens_.Upload(inputs.query_lens);
    seq_lens_.Upload(inputs.seq_lens);
    key_start_.Upload(inputs.key_start);
    num_live_rows_.Upload({&inputs.num_live_rows, 1});
    entries_.Upload(entries);
    host_entries_ = entries;
    out_ints_.Poison();
    out_slots_.Poison();
  }

  absl::Status Launch(cudaStream_t stream) const {
    BatchGatherArgs gather = gather_;
    gather.table_row = table_row_.data();
    gather.query_lens = query_lens_.data();
    gather.seq_lens = seq_lens_.data();
    gather.key_start = key_start_.data();
    gather.num_live_rows = num_live_rows_.data();
    gather.table.entries = entries_.data();
    SetOutputs(out_ints_.data(), out_slots_.data(), gather);
    return LaunchBatchGather(gather, stream);
  }

  void ExpectTheHosts() {
    BatchGatherArgs gather = gather_;
    gather.table_row = inputs_.table_row.data();
    gather.query_lens = inputs_.query_lens.data();
    gather.seq_lens = inputs_.seq_lens.data();
    gather.key_start = inputs_.key_start.data();
    gather.num_live_rows = &inputs_.num_live_rows;
    gather.table.entries = host_entries_.data();
    SetOutputs(host_ints_.data(), host_slots_.data(), gather);
    BatchGatherOnHost(gather);
    ASSERT_EQ(out_ints_.Download(), host_ints_);
    ASSERT_EQ(out_slots_.Download(), host_slots_);
  }

 private:
  void SetOutputs(int32_t* ints, int64_t* slots, BatchGatherArgs& gather) const {
    const int rows = gather_.num_rows;
    gather.arrays = {.positions = ints + 5 * rows + 2,
                     .slot_mapping = slots,
                     .query_start_loc = ints,
                     .seq_lens = ints + rows + 1,
                     .table_row = ints + 2 * rows + 1,
                     .row_faults = ints + 4 * rows + 1,
                     .key_start = ints + 3 * rows + 1};
    gather.num_faults = ints + 5 * rows + 1;
  }

  BatchGatherArgs gather_;
  DeviceArray<int32_t> table_row_, query_lens_, seq_lens_, key_start_, num_live_rows_, entries_;
  DeviceArray<int32_t> out_ints_;
  DeviceArray<int64_t> out_slots_;
  std::vector<int32_t> host_ints_;
  std::vector<int64_t> host_slots_;
  std::vector<int32_t> host_entries_;
  Inputs inputs_;
};

enum class Values { kGood, kHostile };

// Returns the sequences as arrays of num_rows rows. Hostile arrays have some random values.
Inputs InputsOf(const Schedule& schedule, int num_rows, SeqLenForm meaning, Values values,
                Random& random) {
  Inputs inputs;
  inputs.num_live_rows = schedule.num_rows();
  for (const BatchSequence& sequence : schedule.sequences) {
    const int start = random.OneIn(3) ? random.Int(0, sequence.num_computed) : 0;
    inputs.table_row.push_back(sequence.table_row);
    inputs.query_lens.push_back(sequence.query_len);
    inputs.seq_lens.push_back(static_cast<int32_t>(
        sequence.num_computed - start + CountedTokens(meaning, 1, sequence.query_len - 1)));
    inputs.key_start.push_back(start);
  }
  for (auto* array : {&inputs.table_row, &inputs.query_lens, &inputs.seq_lens, &inputs.key_start}) {
    array->resize(num_rows, 1 << 20);  // invalid values beyond the live rows
    for (int32_t& value : *array) {
      if (values == Values::kGood || !random.OneIn(12)) continue;
      value = random.Pick({static_cast<int32_t>(random.Bits()), random.Int(-2, 60), INT32_MAX});
    }
  }
  if (values == Values::kHostile && random.OneIn(9))
    inputs.num_live_rows = random.Int(-2, 2 * num_rows);
  return inputs;
}

// Compares num_batches batches. Each is drawn from its own seed, as in the host's tests.
void Compare(uint64_t num_batches, Values values) {
  for (uint64_t seed = 0; seed < num_batches && !testing::Test::HasFatalFailure(); ++seed) {
    Random random(seed);
    Schedule schedule = DrawSchedule({}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << schedule.Description());
    const bool hostile = values == Values::kHostile;
    const PaddedSize padded = {
        .num_rows = schedule.num_rows() + random.Int(0, 3),
        .num_tokens = std::max(0, schedule.num_tokens() + random.Int(hostile ? -4 : 0, 9))};
    Twins twins(padded, schedule.table());
    twins.gather().table.num_blocks =
        hostile ? random.Int(1, schedule.num_blocks) : schedule.num_blocks;
    twins.gather().write_window = random.OneIn(4) ? random.Int(1, 20) : 0;
    const auto meaning =
        random.Pick({SeqLenForm::kWithStep, SeqLenForm::kBeforeStep, SeqLenForm::kWithoutDrafts});
    twins.gather().seq_len_form = meaning;
    if (hostile && random.OneIn(3)) {
      twins.gather().max_query_len = random.Int(0, 8);
      twins.gather().max_seq_len = random.Int(0, 60);
    }
    twins.Upload(InputsOf(schedule, padded.num_rows, meaning, values, random), schedule.entries);
    ASSERT_EQ(twins.Launch(nullptr), absl::OkStatus());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    twins.ExpectTheHosts();
  }
}

TEST_F(BatchGatherGpuTest, MatchesTheHostOnValidArrays) { Compare(20000, Values::kGood); }

TEST_F(BatchGatherGpuTest, MatchesTheHostOnInvalidArrays) { Compare(20000, Values::kHostile); }

TEST_F(BatchGatherSmallGpuTest, MatchesTheHostOnInvalidArrays) { Compare(30, Values::kHostile); }

TEST_F(BatchGatherGpuTest, ReplayedGraphMatchesTheHost) {
  const uint64_t seed = 4;
  Random random(seed);
  const PaddedSize padded = {.num_rows = 24, .num_tokens = 600};
  const BlockTableView shape = {
      .row_stride = 70, .num_tables = 32, .max_blocks = 64, .block_size = 8};
  Twins twins(padded, shape);
  twins.gather().table.num_blocks = 5000;
  CapturedWork graph(
      [&](cudaStream_t stream) { ASSERT_EQ(twins.Launch(stream), absl::OkStatus()); });
  for (int replay = 0; replay < 200; ++replay) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", replay " << replay);
    Schedule schedule;
    schedule.block_size = shape.block_size;
    // Every number of live rows that fits the captured size, then large and small numbers in turn.
    const int num_rows = replay <= 24      ? replay
                         : replay % 2 == 0 ? random.Int(12, 24)
                                           : random.Int(0, 3);
    for (int r = 0; r < num_rows; ++r) {
      schedule.sequences.push_back({.table_row = random.Int(0, 31),
                                    .num_computed = random.Int(0, 400),
                                    .query_len = random.Pick({0, 1, random.Int(1, 40)})});
    }
    std::vector<int32_t> entries(shape.num_tables * shape.row_stride);
    for (int32_t& entry : entries) entry = random.OneIn(90) ? -7 : random.Int(0, 4999);
    twins.Upload(InputsOf(schedule, padded.num_rows, SeqLenForm::kWithStep,
                          replay % 3 == 0 ? Values::kHostile : Values::kGood, random),
                 entries);
    graph.Replay();
    twins.ExpectTheHosts();
    if (HasFatalFailure()) return;
  }
}

// Includes more rows and tokens than threads per CTA, rows with many blocks, and tokens beyond
// num_tokens.
TEST_F(BatchGatherGpuTest, MatchesTheHostForAnyNumberOfRows) {
  Random random(5);
  for (int num_rows : {1, 256, 1023, 1024, 1025, 3000}) {
    for (int longest : {1, 5, 900}) {
      SCOPED_TRACE(testing::Message() << num_rows << " rows of " << longest);
      const BlockTableView shape = {
          .row_stride = 64, .num_tables = 50, .max_blocks = 64, .block_size = 16};
      std::vector<int32_t> entries(shape.num_tables * shape.row_stride);
      for (int32_t& entry : entries) entry = random.Int(random.OneIn(500) ? -1 : 1, 9999);
      Schedule schedule;
      for (int r = 0; r < num_rows; ++r) {
        const int query_len = random.Int(0, longest);
        schedule.sequences.push_back({.table_row = random.Int(0, 49),
                                      .num_computed = random.Int(0, 1024 - query_len),
                                      .query_len = query_len});
      }
      const int num_tokens = schedule.num_tokens();
      for (int room : {num_tokens, num_tokens - num_tokens / 3}) {
        Twins twins({.num_rows = num_rows, .num_tokens = room}, shape);
        twins.gather().table.num_blocks = 10000;
        twins.Upload(InputsOf(schedule, num_rows, SeqLenForm::kWithStep, Values::kGood, random),
                     entries);
        ASSERT_EQ(twins.Launch(nullptr), absl::OkStatus());
        twins.ExpectTheHosts();
      }
    }
  }
}

}  // namespace
}  // namespace reprise
