#include "reprise/base/mapped_buffer.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(MappedBufferTest, HostMemoryIsZeroedAlignedAndHasOneAddress) {
  for (const int64_t bytes : {1, 4095, 4096, 4097, 100'000}) {
    const MappedBuffer buffer = *MappedBuffer::AllocateOnHost(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(buffer.host_bytes().size(), static_cast<size_t>(bytes));
    EXPECT_THAT(buffer.host_bytes(), Each(std::byte{0}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.host<std::byte>()) % MappedBuffer::kAlignment, 0u);
    EXPECT_EQ(buffer.device<int32_t>(), buffer.host<int32_t>());
  }
}

TEST(MappedBufferTest, HostAndDeviceAddressesReferToTheSameMemory) {
  const MappedBuffer buffer = *MappedBuffer::AllocateOnHost(1024);
  buffer.host<int64_t>()[127] = 42;  // the last element
  EXPECT_EQ(buffer.device<int64_t>()[127], 42);
}

TEST(MappedBufferTest, RejectsInvalidSizes) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()}) {
    for (const auto& status : {MappedBuffer::AllocateOnHost(bytes).status(),
                               MappedBuffer::AllocateMapped(bytes).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
      EXPECT_THAT(std::string(status.message()), HasSubstr("bytes must be the size of a buffer"));
    }
  }
}

TEST(MappedBufferTest, MoveKeepsTheAddressesAndEmptiesTheSource) {
  MappedBuffer a = *MappedBuffer::AllocateOnHost(64);
  int32_t* const address = a.host<int32_t>();
  MappedBuffer b = std::move(a);
  EXPECT_EQ(b.host<int32_t>(), address);
  EXPECT_EQ(a.bytes(), 0);  // NOLINT: the moved-from state is specified
  EXPECT_EQ(a.host<int32_t>(), nullptr);
  EXPECT_TRUE(a.host_bytes().empty());

  MappedBuffer c = *MappedBuffer::AllocateOnHost(64);
  c = std::move(b);  // frees the previous memory of c
  EXPECT_EQ(c.device<int32_t>(), address);
  MappedBuffer& self = c;
  c = std::move(self);
  EXPECT_EQ(c.host<int32_t>(), address);

  std::optional<MappedBuffer> later;
  later = std::move(c);
  EXPECT_EQ(later->host<int32_t>(), address);
}

#ifndef REPRISE_WITH_CUDA
TEST(MappedBufferTest, ABuildWithoutCudaHasNoMappedMemory) {
  EXPECT_EQ(MappedBuffer::AllocateMapped(64).status().code(), absl::StatusCode::kUnimplemented);
}
#endif

}  // namespace
}  // namespace reprise
