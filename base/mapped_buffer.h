// Memory that the host and a device both address: the host writes data for the next step, or the
// device writes results for the host, without a copy in between.
//
//   REPRISE_ASSIGN_OR_RETURN(MappedBuffer deltas, MappedBuffer::AllocateMapped(bytes));
//   std::memcpy(deltas.host<std::byte>() + offset, delta, size);   // the host's address
//   LaunchRefill(deltas.device<std::byte>() + offset, stream);     // the device's address of it
//
// The buffer does not order the two sides: a kernel sees what was written before its launch, the
// host sees what a kernel wrote after waiting for it, and a fence guards a part that is still being
// read (base/staging_ring.h). Each read by a device crosses the bus, so keep the data small.
//
// With a GPU the memory is pinned and mapped into the address space of every device. On the CPU,
// where the "device" is the host, it is ordinary memory and both addresses are the same.
//
// Thread safety: as memory. Ownership: the buffer frees the memory when it is destroyed; nothing
// may use it then, on any stream. Moving a buffer keeps the addresses.

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
  // Both addresses are multiples of it.
  static constexpr int64_t kAlignment = 256;

  // Ordinary memory, zeroed. Errors: InvalidArgument unless bytes >= 1; ResourceExhausted.
  static absl::StatusOr<MappedBuffer> AllocateOnHost(int64_t bytes);

  // Pinned memory that every GPU may access, zeroed. Errors: as above; Unimplemented in a build
  // without CUDA; Internal if no GPU is found or it does not answer.
  static absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes);

  MappedBuffer(MappedBuffer&& other) noexcept { *this = std::move(other); }
  MappedBuffer& operator=(MappedBuffer&& other) noexcept;
  ~MappedBuffer() { Free(); }

  int64_t bytes() const { return bytes_; }

  // The host's address. REQUIRES: T's alignment divides kAlignment.
  template <typename T>
  T* host() const {
    return reinterpret_cast<T*>(host_);
  }
  absl::Span<std::byte> host_bytes() const { return {host_, static_cast<size_t>(bytes_)}; }

  // The same memory as a kernel addresses it.
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
