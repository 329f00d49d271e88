// Compares lengths and slots of a rank from the device with values from the host, array by array.

#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/rank_rows.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

TEST(RankRowsGpuTest, ReplayedGraphMatchesTheHost) {
  if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  const uint64_t seed = 1;
  Random random(seed);
  for (const int world : {1, 2, 4}) {
    for (const int num_rows : {0, 1, 300}) {
      const int interleave = random.Pick({1, 2, 16});
      const int block_size = 2 * world * interleave;
      const int num_tokens = num_rows == 0 ? 0 : num_rows + random.Int(0, 700);
      BuilderTwins<RankRowsArgs> twins(
          [&](ArrayCarver& carver) {
            return RankRowsArgs{
                .ranks = {.rank = world - 1, .world = world, .interleave = interleave},
                .block_size = block_size,
                .num_rows = num_rows,
                .num_tokens = num_tokens,
                .num_groups = 3,
                .group_stride = num_tokens,
                .seq_lens = carver.Take<int32_t>("seq_lens", num_rows),
                .context_lens = carver.Take<int32_t>("context_lens", num_rows),
                .slot_mapping = carver.Take<int64_t>("slot_mapping", int64_t{3} * num_tokens),
                .rank_seq_lens = carver.Take<int32_t>("rank_seq_lens", num_rows),
                .rank_context_lens = carver.Take<int32_t>("rank_context_lens", num_rows),
                .rank_slot_mapping =
                    carver.Take<int64_t>("rank_slot_mapping", int64_t{3} * num_tokens)};
          },
          LaunchRankRows);
      for (int replay = 0; replay < 20; ++replay) {
        twins.Poison();
        const RankRowsArgs& args = twins.args();
        for (int r = 0; r < num_rows; ++r) {
          const_cast<int32_t*>(args.seq_lens)[r] = random.Int(0, INT32_MAX - 1);
          const_cast<int32_t*>(args.context_lens)[r] = random.Int(0, args.seq_lens[r]);
        }
        for (int i = 0; i < 3 * num_tokens; ++i) {
          const_cast<int64_t*>(args.slot_mapping)[i] =
              random.OneIn(5) ? -1 : static_cast<int64_t>(random.Bits() % (uint64_t{1} << 40));
        }
        ASSERT_EQ(twins.Compare(RankRowsOnHost), "")
            << "seed " << seed << ", world " << world << ", rows " << num_rows << ", replay "
            << replay;
      }
    }
  }
}

}  // namespace
}  // namespace reprise
