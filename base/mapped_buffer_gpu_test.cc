#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/mapped_buffer.h"

namespace reprise {
namespace {

using ::testing::Each;

class MappedBufferGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU on this machine";
    }
  }
};

TEST_F(MappedBufferGpuTest, IsPinnedMappedZeroedAndAligned) {
  const MappedBuffer buffer = *MappedBuffer::AllocateMapped(10'000);
  EXPECT_THAT(buffer.host_bytes(), Each(std::byte{0}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.host<std::byte>()) % MappedBuffer::kAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.device<std::byte>()) % MappedBuffer::kAlignment, 0u);
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, buffer.host<void>()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(attributes.devicePointer, buffer.device<void>());
}

TEST_F(MappedBufferGpuTest, TheDeviceReadsWhatTheHostWrote) {
  const MappedBuffer buffer = *MappedBuffer::AllocateMapped(1000 * sizeof(int32_t));
  std::iota(buffer.host<int32_t>(), buffer.host<int32_t>() + 1000, 7);
  void* on_device = nullptr;
  ASSERT_EQ(cudaMalloc(&on_device, buffer.bytes()), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(on_device, buffer.device<void>(), buffer.bytes(), cudaMemcpyDefault),
            cudaSuccess);
  std::vector<int32_t> back(1000);
  EXPECT_EQ(cudaMemcpy(back.data(), on_device, buffer.bytes(), cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(back, std::vector<int32_t>(buffer.host<int32_t>(), buffer.host<int32_t>() + 1000));
  EXPECT_EQ(cudaFree(on_device), cudaSuccess);
}

TEST_F(MappedBufferGpuTest, TheHostReadsWhatTheDeviceWrote) {
  const MappedBuffer buffer = *MappedBuffer::AllocateMapped(4097);
  ASSERT_EQ(cudaMemset(buffer.device<void>(), 0x5a, buffer.bytes()), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_THAT(buffer.host_bytes(), Each(std::byte{0x5a}));
}

TEST_F(MappedBufferGpuTest, MoveKeepsTheAddressesAndFreesTheMemoryOnce) {
  MappedBuffer a = *MappedBuffer::AllocateMapped(64);
  void* const address = a.device<void>();
  {
    const MappedBuffer b = std::move(a);
    EXPECT_EQ(b.device<void>(), address);
  }
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, address), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);  // freed
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(MappedBufferGpuTest, RejectsMoreMemoryThanTheMachineHasWithoutPendingError) {
  const absl::StatusOr<MappedBuffer> buffer = MappedBuffer::AllocateMapped(int64_t{1} << 50);
  EXPECT_FALSE(buffer.ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(MappedBuffer::AllocateMapped(64).ok());
}

}  // namespace
}  // namespace reprise
