#include "reprise/base/mapped_buffer.h"

#include <glog/logging.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>

#include "reprise/base/cuda_status.h"
#endif

namespace reprise {
namespace {

absl::Status CheckBytes(int64_t bytes) {
  // Leaves space for rounding up to the alignment.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - MappedBuffer::kAlignment;
  if (bytes >= 1 && bytes <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bytes must be the size of a buffer: expected 1..", kMost, ", got ", bytes));
}

}  // namespace

absl::StatusOr<MappedBuffer> MappedBuffer::AllocateOnHost(int64_t bytes) {
  REPRISE_RETURN_IF_ERROR(CheckBytes(bytes));
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no host memory for ", bytes, " bytes"));
  }
  std::memset(memory, 0, static_cast<size_t>(rounded));
  auto* const address = static_cast<std::byte*>(memory);
  return MappedBuffer(Kind::kHost, address, address, bytes);
}

MappedBuffer& MappedBuffer::operator=(MappedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    kind_ = std::exchange(other.kind_, Kind::kNone);
    host_ = std::exchange(other.host_, nullptr);
    device_ = std::exchange(other.device_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

#ifdef REPRISE_WITH_CUDA

absl::StatusOr<MappedBuffer> MappedBuffer::AllocateMapped(int64_t bytes) {
  REPRISE_RETURN_IF_ERROR(CheckBytes(bytes));
  void* host = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(
      cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable),
      "cudaHostAlloc"));
  MappedBuffer buffer(Kind::kMapped, static_cast<std::byte*>(host), nullptr, bytes);
  void* device = nullptr;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaHostGetDevicePointer(&device, host, 0), "cudaHostGetDevicePointer"));
  buffer.device_ = static_cast<std::byte*>(device);
  std::memset(host, 0, static_cast<size_t>(bytes));
  return buffer;
}

#else

absl::StatusOr<MappedBuffer> MappedBuffer::AllocateMapped(int64_t bytes) {
  REPRISE_RETURN_IF_ERROR(CheckBytes(bytes));
  return absl::UnimplementedError("this build has no CUDA, so it has no mapped memory");
}

#endif  // REPRISE_WITH_CUDA

void MappedBuffer::Free() {
  switch (kind_) {
    case Kind::kNone:
      return;
    case Kind::kHost:
      std::free(host_);
      break;
    case Kind::kMapped:
#ifdef REPRISE_WITH_CUDA
      // At the end of a process, the CUDA context and the memory may have been destroyed already.
      if (absl::Status status = CudaStatus(cudaFreeHost(host_), "cudaFreeHost"); !status.ok()) {
        LOG(WARNING) << status;
      }
#endif
      break;
  }
  kind_ = Kind::kNone;
}

}  // namespace reprise
