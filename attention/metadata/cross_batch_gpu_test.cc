// Compares encoder lengths gathered on the device with lengths gathered on the host, for valid and
// for invalid arrays.

#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

constexpr int kRows = 300;
constexpr int kTables = 400;

CrossBatchArgs Carve(ArrayCarver& carver) {
  return {.rows = {.seq_lens = carver.Take<int32_t>("rows.seq_lens", kRows),
                   .table_row = carver.Take<int32_t>("rows.table_row", kRows),
                   .num_rows = kRows},
          .encoder_lens = carver.Take<int32_t>("encoder_lens", kTables),
          .table = {.entries = carver.Take<int32_t>("table", kTables * 10),
                    .row_stride = 10,
                    .num_tables = kTables,
                    .max_blocks = 10,
                    .block_size = 16},
          .max_encoder_len = 150,
          .seq_lens = carver.Take<int32_t>("seq_lens", kRows),
          .row_faults = carver.Take<int32_t>("row_faults", kRows),
          .num_faults = carver.Take<int32_t>("num_faults", 1)};
}

// Fills the inputs.
void Draw(Random& random, bool hostile, int num_live, const CrossBatchArgs& args) {
  auto* seq_lens = const_cast<int32_t*>(args.rows.seq_lens);
  auto* table_row = const_cast<int32_t*>(args.rows.table_row);
  auto* encoder_lens = const_cast<int32_t*>(args.encoder_lens);
  for (int table = 0; table < kTables; ++table) {
    encoder_lens[table] = hostile && random.OneIn(9) ? random.Int(-5, 400) : random.Int(0, 150);
  }
  for (int r = 0; r < kRows; ++r) {
    seq_lens[r] = r < num_live ? random.Int(0, 2000) : 0;
    table_row[r] = hostile && random.OneIn(9) ? random.Int(-5, 600) : random.Int(0, kTables - 1);
  }
}

TEST(CrossBatchGpuTest, ReplayedGraphMatchesTheHost) {
  if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  const uint64_t seed = 1;
  Random random(seed);
  BuilderTwins<CrossBatchArgs> twins(Carve, LaunchCrossBatch);
  for (int replay = 0; replay < 200; ++replay) {
    twins.Poison();
    Draw(random, replay % 3 == 0, replay % 2 == 0 ? kRows : random.Int(0, 9), twins.args());
    ASSERT_EQ(twins.Compare(CrossBatchOnHost), "") << "seed " << seed << ", replay " << replay;
    if (replay % 3 != 0) {
      ASSERT_TRUE(BuildCrossBatch(twins.args()).ok());
    }
  }
}

}  // namespace
}  // namespace reprise
