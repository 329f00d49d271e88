// Compares batches over contiguous keys from the device with batches from the host, array by array,
// for valid and for invalid lengths.

#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

constexpr int kMaxLen = 40;

RaggedGatherArgs Carve(ArrayCarver& carver, RaggedKind kind, int num_rows) {
  const int num_tokens = 30 * num_rows;
  return {.lens = carver.Take<int32_t>("lens", num_rows),
          .kind = kind,
          .num_rows = num_rows,
          .num_tokens = num_tokens,
          .max_len = kMaxLen,
          .query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1),
          .key_start_loc = carver.Take<int32_t>("key_start_loc", num_rows + 1),
          .positions = carver.Take<int32_t>("positions", num_tokens),
          .slot_mapping = carver.Take<int64_t>("slot_mapping", num_tokens),
          .row_faults = carver.Take<int32_t>("row_faults", num_rows),
          .num_faults = carver.Take<int32_t>("num_faults", 1)};
}

// Fills the lengths. Only some of the draws fit num_tokens.
void Draw(Random& random, bool hostile, int num_live, const RaggedGatherArgs& args) {
  auto* lens = const_cast<int32_t*>(args.lens);
  for (int r = 0; r < args.num_rows; ++r) {
    lens[r] = r < num_live ? random.Pick({0, kMaxLen, random.Int(0, kMaxLen)}) : 0;
    if (hostile && random.OneIn(9)) {
      lens[r] = random.Pick({static_cast<int32_t>(random.Bits()), kMaxLen + 1, -1, INT32_MAX});
    }
  }
}

TEST(RaggedGatherGpuTest, ReplayedGraphMatchesTheHost) {
  if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  const uint64_t seed = 1;
  Random random(seed);
  for (const RaggedKind kind :
       {RaggedKind::kEncoder, RaggedKind::kProfile, RaggedKind::kProfileZeros}) {
    for (const int num_rows : {0, 1, 20, 1500}) {
      BuilderTwins<RaggedGatherArgs> twins(
          [&](ArrayCarver& carver) { return Carve(carver, kind, num_rows); }, LaunchRaggedGather);
      for (int replay = 0; replay < (num_rows > 1000 ? 20 : 200); ++replay) {
        twins.Poison();
        const int num_live = replay % 2 == 0 ? num_rows : random.Int(0, num_rows / 4);
        Draw(random, replay % 3 == 0, num_live, twins.args());
        ASSERT_EQ(twins.Compare(RaggedGatherOnHost), "")
            << "seed " << seed << ", kind " << static_cast<int>(kind) << ", rows " << num_rows
            << ", replay " << replay;
      }
    }
  }
}

}  // namespace
}  // namespace reprise
