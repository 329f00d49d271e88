// Compares the cache after moves on the device with the cache after moves by the definition.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/speculation/move_kv.h"
#include "reprise/attention/testing/move_case.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

class MoveKvGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class MoveKvSmallGpuTest : public MoveKvGpuTest {};

void MoveOnBoth(int num_cases) {
  for (int seed = 0; seed < num_cases; ++seed) {
    Random random(seed);
    MoveCase moves(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << moves.description());
    std::vector<std::unique_ptr<DeviceArray<uint8_t>>> copies;
    const absl::StatusOr<MoveKvArgs> args = moves.Args([&](const void* host, size_t bytes) {
      copies.push_back(std::make_unique<DeviceArray<uint8_t>>(bytes));
      copies.back()->Upload({static_cast<const uint8_t*>(host), bytes});
      return static_cast<void*>(copies.back()->data());
    });
    ASSERT_TRUE(args.ok()) << args.status();
    CapturedWork work([&](cudaStream_t stream) { CheckLaunch(LaunchMoveKv(*args, stream)); });
    work.Replay();
    moves.MoveByDefinition();
    for (int layer = 0; layer < moves.num_layers(); ++layer) {
      moves.memory(layer) = copies[layer]->Download();
    }
    ASSERT_EQ(moves.FirstDifference(), "");
  }
}

TEST_F(MoveKvGpuTest, MovesTokensInAllLayoutsDtypesAndLayers) { MoveOnBoth(300); }

TEST_F(MoveKvSmallGpuTest, MovesTokensInAllLayoutsDtypesAndLayers) { MoveOnBoth(20); }

}  // namespace
}  // namespace reprise
