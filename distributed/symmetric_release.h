// Releases device work that waits for other ranks in LibTorch's symmetric memory. Private to the
// folder. Only in builds with CUDA.
//
// LibTorch's kernels wait without a timeout for two things: a peer's signal in this rank's signal
// pad, and the removal of this rank's last signal from the peer's pad. A peer that has ended does
// neither, but its pad remains mapped into this process. The host therefore writes both on behalf
// of the peer, on a separate stream, until no kernel waits. The results of these kernels are
// undefined.
//
// Thread safety: one thread calls Add(), AddFlag() and the destructor; another thread may call
// Run(). Any thread may call Stop().

#ifndef REPRISE_DISTRIBUTED_SYMMETRIC_RELEASE_H_
#define REPRISE_DISTRIBUTED_SYMMETRIC_RELEASE_H_

#if defined(REPRISE_WITH_CUDA) && defined(REPRISE_WITH_C10D)

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

class SymmetricRelease {
 public:
  // Allocates everything that Run() needs, because allocation could block while the device waits.
  static absl::StatusOr<std::unique_ptr<SymmetricRelease>> Create(const Ranks& ranks,
                                                                  c10::Device device);
  ~SymmetricRelease();
  SymmetricRelease(const SymmetricRelease&) = delete;
  SymmetricRelease& operator=(const SymmetricRelease&) = delete;

  // Registers `memory`. Call it before kernels on any rank use `memory`.
  absl::Status Add(c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> memory);

  // Registers a 32-bit `flag` in device memory that Run() sets to 1. Call it before Run() can be
  // called.
  void AddFlag(void* flag) { flags_.push_back(flag); }

  // Releases waiting device work until `limit` has passed or Stop() is called, including work that
  // the host launches meanwhile.
  void Run(absl::Duration limit);
  void Stop() { stops_ = true; }

 private:
  SymmetricRelease(const Ranks& ranks, c10::Device device) : ranks_(ranks), device_(device) {}

  // Writes `value` to the signals of `rank` in `pad`, on all channels. `pad` is a peer's pad or
  // this rank's pad.
  cudaError_t Write(void* pad, int rank, const at::Tensor& value);
  size_t num_channels() const;

  Ranks ranks_;
  c10::Device device_;
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> stops_ = false;
  std::vector<void*> flags_;
  at::Tensor sent_, taken_;  // [channels] int32, in pinned memory: ones, zeros
  std::mutex mutex_;         // protects memories_
  std::vector<c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>> memories_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_SYMMETRIC_RELEASE_H_
