// Releases device work that waits for other ranks in LibTorch's symmetric memory. Private to the
// folder. Only in builds with CUDA.
//
// LibTorch's kernels wait without end: for a peer's signal to come to this rank's signal pad, and
// for this rank's last signal to be taken from the peer's pad. A peer that has ended does neither,
// but its pad remains mapped here. So the host writes both in its place, from a stream of its own,
// until no kernel waits. What the kernels then compute has no meaning.
//
// Thread safety: Add() and the destructor on one thread, Run() on another.

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
  // What Run() needs is made here: a device that waits may allocate nothing.
  static absl::StatusOr<std::unique_ptr<SymmetricRelease>> Create(const Ranks& ranks,
                                                                  c10::Device device);
  ~SymmetricRelease();
  SymmetricRelease(const SymmetricRelease&) = delete;
  SymmetricRelease& operator=(const SymmetricRelease&) = delete;

  // Before kernels use `memory` on any rank.
  absl::Status Add(c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> memory);

  // Run() also sets the 32-bit `flag`, in memory of the device, to 1. Before Run() can be called.
  void AddFlag(void* flag) { flags_.push_back(flag); }

  // Releases what waits, until `limit` has passed or Stop(): work that is in flight, or that the
  // host still launches.
  void Run(absl::Duration limit);
  void Stop() { stops_ = true; }

 private:
  SymmetricRelease(const Ranks& ranks, c10::Device device) : ranks_(ranks), device_(device) {}

  // Writes `value` to the signals of this rank in a peer's pad, or of a peer in this rank's:
  // those of `rank` in `pad`.
  cudaError_t Write(void* pad, int rank, const at::Tensor& value);
  size_t num_channels() const;

  Ranks ranks_;
  c10::Device device_;
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> stops_ = false;
  std::vector<void*> flags_;
  at::Tensor sent_, taken_;  // [channels] int32, in pinned memory: ones, zeros
  std::mutex mutex_;         // of memories_
  std::vector<c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>> memories_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D

#endif  // REPRISE_DISTRIBUTED_SYMMETRIC_RELEASE_H_
