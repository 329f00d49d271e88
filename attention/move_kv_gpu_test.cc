// Moves of keys and values on the device leave the cache as those of the definition do.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/move_kv.h"
#include "attention/move_kv_kernel.h"
#include "attention/testing/device_array.h"
#include "attention/testing/move_case.h"
#include "attention/testing/random.h"
#include "gtest/gtest.h"

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
    const absl::StatusOr<MoveKvParams> params = moves.Params([&](const void* host, size_t bytes) {
      copies.push_back(std::make_unique<DeviceArray<uint8_t>>(bytes));
      copies.back()->Upload({static_cast<const uint8_t*>(host), bytes});
      return static_cast<void*>(copies.back()->data());
    });
    ASSERT_TRUE(params.ok()) << params.status();
    CapturedWork work([&](cudaStream_t stream) { CheckCuda(LaunchMoveKv(*params, stream)); });
    work.Replay();
    moves.MoveByDefinition();
    for (int layer = 0; layer < moves.num_layers(); ++layer) {
      moves.memory(layer) = copies[layer]->Download();
    }
    ASSERT_EQ(moves.FirstDifference(), "");
  }
}

TEST_F(MoveKvGpuTest, TokensMoveInAllLayoutsDtypesAndLayers) { MoveOnBoth(300); }

TEST_F(MoveKvSmallGpuTest, TokensMoveInAllLayoutsDtypesAndLayers) { MoveOnBoth(20); }

TEST_F(MoveKvGpuTest, NothingToMoveIsNoLaunchAndBadSizesAreInvalid) {
  MoveKvParams params;
  EXPECT_EQ(LaunchMoveKv(params, nullptr), cudaErrorInvalidValue);
  params.num_layers = 1;
  params.block_size = 1;
  params.element_bytes = 2;
  EXPECT_EQ(LaunchMoveKv(params, nullptr), cudaSuccess);
  params.num_layers = kMaxMoveLayers + 1;
  EXPECT_EQ(LaunchMoveKv(params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise
