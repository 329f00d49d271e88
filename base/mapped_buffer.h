// Memory that the host and a device can both access. The host writes data for the next step, or the
// device writes results for the host, without a copy.
//
//   REPRISE_ASSIGN_OR_RETURN(MappedBuffer deltas, MappedBuffer::AllocateMapped(bytes));
//   std::memcpy(deltas.host<std::byte>() + offset, delta, size);   // the host's address
//   LaunchRefill(deltas.device<std::byte>() + offset, stream);     // the device's address
//
// The buffer does not synchronise the two sides. A kernel sees everything that the host wrote
// before the launch. The host must wait for a kernel before it reads the kernel's results. Use a
// fence to protect a part that a device may still read (base/staging_ring.h). Each read by a device
// crosses the bus, so keep the data small.
//
// With a GPU, the memory is pinned and mapped into the address space of every device. On the CPU,
// the "device" is the host: the memory is ordinary memory, and both addresses are equal.
//
// Thread safety: same as the memory. Ownership: the destructor frees the memory; no stream may use
// it at that time. Moving a buffer keeps the addresses.

#ifndef REPRISE_BASE_MAPPED_BUFFER_H_
#define REPRISE_BASE_MAPPED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

class MappedBuffer {
 public:
  // Alignment of both addresses in bytes.
  static constexpr int64_t kAlignment = 256;

  // Allocates ordinary memory, zeroed.
  // Errors: InvalidArgument unless bytes >= 1; ResourceExhausted if memory runs out.
  static absl::StatusOr<MappedBuffer> AllocateOnHost(int64_t bytes);

  // Allocates pinned memory that every GPU can access, zeroed.
  // Errors: see AllocateOnHost(); Unimplemented in a build without CUDA; Internal if there is no
  // GPU or CUDA fails.
  static absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes);

  MappedBuffer(MappedBuffer&& other) noexcept { *this = std::move(other); }
  MappedBuffer& operator=(MappedBuffer&& other) noexcept;
  ~MappedBuffer() { Free(); }

  int64_t bytes() const { return bytes_; }

  // The address for the host. REQUIRES: the alignment of T divides kAlignment.
  template <typename T>
  T* host() const {
    return reinterpret_cast<T*>(host_);
  }
  absl::Span<std::byte> host_bytes() const { return {host_, static_cast<size_t>(bytes_)}; }

  // The address for kernels, of the same memory.
  template <typename T>
  T* device() const {
    return reinterpret_cast<T*>(device_);
  }

 private:
  enum class Kind : int8_t { kNone, kHost, kMapped };

  MappedBuffer(Kind kind, std::byte* host, std::byte* device, int64_t bytes)
      : kind_(kind), host_(host), device_(device), bytes_(bytes) {}
  void Free();

  Kind kind_ = Kind::kNone;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_MAPPED_BUFFER_H_
