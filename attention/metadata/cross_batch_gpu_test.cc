// Encoder lengths gathered on the device are those of the host; on garbage, rows see nothing.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention/metadata/cross_batch.h"
#include "attention/metadata/cross_batch_kernel.h"
#include "attention/testing/random.h"
#include "base/testing/device_array.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

class CrossBatchGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_F(CrossBatchGpuTest, AReplayedGraphGathersTheLengthsOfEachBatch) {
  constexpr int kRows = 300;
  constexpr int kTables = 400;
  const uint64_t seed = 1;
  Random random(seed);
  DeviceArray<int32_t> lens(kRows), table_row(kRows), encoder_lens(kTables), out(kRows);
  CrossBatch cross = {.rows = {.num_rows = kRows},
                      .table = {.num_tables = kTables, .max_blocks = 10, .block_size = 16},
                      .max_encoder_len = 150};
  CrossBatch device = cross;
  device.rows.seq_lens = lens.data();
  device.rows.table_row = table_row.data();
  device.encoder_lens = encoder_lens.data();
  device.seq_lens = out.data();
  CapturedWork graph(
      [&](cudaStream_t stream) { ASSERT_EQ(LaunchCrossBatch(device, stream), cudaSuccess); });
  for (int replay = 0; replay < 200; ++replay) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", replay " << replay);
    const bool hostile = replay % 3 == 0;
    const int num_live = replay % 2 == 0 ? kRows : random.Int(0, 9);
    std::vector<int32_t> host_lens(kRows), host_row(kRows), host_encoder(kTables);
    for (int32_t& length : host_encoder) {
      length = hostile && random.OneIn(9) ? random.Int(-5, 400) : random.Int(0, 150);
    }
    for (int r = 0; r < num_live; ++r) {
      host_lens[r] = random.Int(0, 2000);
      host_row[r] = hostile && random.OneIn(9) ? random.Int(-5, 600) : random.Int(0, kTables - 1);
    }
    lens.Upload(host_lens);
    table_row.Upload(host_row);
    encoder_lens.Upload(host_encoder);
    out.Poison();
    graph.Replay();

    std::vector<int32_t> expected(kRows);
    cross.rows.seq_lens = host_lens.data();
    cross.rows.table_row = host_row.data();
    cross.encoder_lens = host_encoder.data();
    cross.seq_lens = expected.data();
    if (!hostile) {
      ASSERT_TRUE(BuildCrossBatch(cross).ok());
    } else {
      for (int r = 0; r < kRows; ++r) expected[r] = std::max(0, CrossSeqLen(cross, r));
    }
    ASSERT_EQ(out.Download(), expected);
  }
}

TEST_F(CrossBatchGpuTest, WhatTheHostRefusesIsNotLaunched) {
  EXPECT_EQ(LaunchCrossBatch({.max_encoder_len = 5}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCrossBatch({.rows = {.num_rows = 1}, .table = {.num_tables = 1, .block_size = 1}},
                             nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise
