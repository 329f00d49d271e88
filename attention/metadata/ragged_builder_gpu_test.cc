// Batches over contiguous keys made on the device are those of the host, field by field.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "attention/metadata/ragged_builder.h"
#include "attention/metadata/ragged_builder_kernel.h"
#include "attention/testing/random.h"
#include "base/testing/device_array.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

class RaggedBuilderGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

struct Device {
  Device(int num_rows, int num_tokens)
      : lens(num_rows),
        query_start_loc(num_rows + 1),
        key_start_loc(num_rows + 1),
        positions(num_tokens),
        slot_mapping(num_tokens),
        bad(1) {}

  RaggedGather Gather(RaggedKind kind, int max_len) const {
    return {.lens = lens.data(),
            .kind = kind,
            .num_rows = static_cast<int>(lens.size()),
            .num_tokens = static_cast<int>(positions.size()),
            .max_len = max_len,
            .query_start_loc = query_start_loc.data(),
            .key_start_loc = key_start_loc.data(),
            .positions = positions.data(),
            .slot_mapping = slot_mapping.data(),
            .num_faults = bad.data()};
  }

  void Poison() {
    for (auto* array : {&query_start_loc, &key_start_loc, &positions, &bad}) array->Poison();
    slot_mapping.Poison();
  }

  void ExpectTheHosts(RaggedKind kind, const std::vector<int32_t>& host_lens) {
    std::vector<int32_t> loc(lens.size() + 1), keys(lens.size() + 1), places(positions.size());
    std::vector<int64_t> slots(positions.size());
    const absl::StatusOr<BuiltRaggedBatch> built = BuildRaggedBatch(
        {.lens = host_lens,
         .kind = kind,
         .padded = PaddedSize{static_cast<int>(lens.size()), static_cast<int>(positions.size())}},
        {.query_start_loc = absl::MakeSpan(loc),
         .key_start_loc = absl::MakeSpan(keys),
         .positions = absl::MakeSpan(places),
         .slot_mapping = absl::MakeSpan(slots)});
    ASSERT_TRUE(built.ok()) << built.status();
    ASSERT_EQ(query_start_loc.Download(), loc);
    ASSERT_EQ(key_start_loc.Download(), keys);
    ASSERT_EQ(positions.Download(), places);
    ASSERT_EQ(slot_mapping.Download(), slots);
    ASSERT_EQ(bad.Download(), (std::vector<int32_t>{0}));
  }

  DeviceArray<int32_t> lens, query_start_loc, key_start_loc, positions;
  DeviceArray<int64_t> slot_mapping;
  DeviceArray<int32_t> bad;
};

TEST_F(RaggedBuilderGpuTest, AReplayedGraphMakesEachBatch) {
  const uint64_t seed = 1;
  Random random(seed);
  for (const RaggedKind kind :
       {RaggedKind::kEncoder, RaggedKind::kProfile, RaggedKind::kProfileZeros}) {
    for (const int num_rows : {1, 20, 1500}) {
      Device device(num_rows, 40 * num_rows);
      CapturedWork graph([&](cudaStream_t stream) {
        ASSERT_EQ(LaunchRaggedGather(device.Gather(kind, 40), stream), cudaSuccess);
      });
      for (int replay = 0; replay < (num_rows > 1000 ? 20 : 200); ++replay) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", kind " << static_cast<int>(kind)
                                        << ", rows " << num_rows << ", replay " << replay);
        std::vector<int32_t> lens(num_rows);
        const int num_live = replay % 2 == 0 ? num_rows : random.Int(0, num_rows / 4);
        for (int r = 0; r < num_live; ++r) lens[r] = random.Pick({0, 40, random.Int(0, 40)});
        device.lens.Upload(lens);
        device.Poison();
        graph.Replay();
        device.ExpectTheHosts(kind, lens);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(RaggedBuilderGpuTest, LengthsOutOfRangeMakeEmptyRowsAndAreCounted) {
  Device device(6, 10);
  // Good; negative; above max_len; good; does not fit; neither does what would fit alone.
  device.lens.Upload(std::vector<int32_t>{4, -1, 7, 5, 2, 1});
  ASSERT_EQ(LaunchRaggedGather(device.Gather(RaggedKind::kEncoder, 6), nullptr), cudaSuccess);
  EXPECT_EQ(device.query_start_loc.Download(), (std::vector<int32_t>{0, 4, 4, 4, 9, 9, 9}));
  EXPECT_EQ(device.positions.Download(), (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(device.bad.Download(), (std::vector<int32_t>{4}));
  EXPECT_EQ(LaunchRaggedGather({}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise
