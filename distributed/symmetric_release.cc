#include "reprise/distributed/symmetric_release.h"

#if defined(REPRISE_WITH_CUDA) && defined(REPRISE_WITH_C10D)

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// LibTorch's signal pad is [channel][rank] uint32, with one channel per CTA. 1: sent. 0: taken.
constexpr size_t kSignalBytes = sizeof(uint32_t);

}  // namespace

size_t SymmetricRelease::num_channels() const {
  return c10d::symmetric_memory::get_signal_pad_size() / (kSignalBytes * ranks_.world);
}

absl::StatusOr<std::unique_ptr<SymmetricRelease>> SymmetricRelease::Create(const Ranks& ranks,
                                                                           c10::Device device) {
  std::unique_ptr<SymmetricRelease> release(new SymmetricRelease(ranks, device));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&release->stream_, cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags"));
  // Copies from pinned host memory use a copy engine. Device-to-device copies may use a kernel,
  // which could not start while waiting CTAs occupy all SMs.
  const auto ints = at::TensorOptions().dtype(at::kInt).pinned_memory(true);
  const auto channels = static_cast<int64_t>(release->num_channels());
  release->sent_ = at::ones({channels}, ints);
  release->taken_ = at::zeros({channels}, ints);
  return release;
}

SymmetricRelease::~SymmetricRelease() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaError_t SymmetricRelease::Write(void* pad, int rank, const at::Tensor& value) {
  return cudaMemcpy2DAsync(static_cast<std::byte*>(pad) + rank * kSignalBytes,
                           kSignalBytes * ranks_.world, value.const_data_ptr(), kSignalBytes,
                           kSignalBytes, num_channels(), cudaMemcpyHostToDevice, stream_);
}

absl::Status SymmetricRelease::Add(
    c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> memory) {
  // No kernel of this rank waits on the pads yet, so the write has no effect. It loads everything
  // that Run() will need.
  const std::vector<void*> pads = memory->get_signal_pad_ptrs();
  for (void* pad : pads) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(Write(pad, ranks_.rank, taken_), "cudaMemcpy2DAsync"));
  }
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  const std::lock_guard<std::mutex> lock(mutex_);
  memories_.push_back(std::move(memory));
  return absl::OkStatus();
}

void SymmetricRelease::Run(absl::Duration limit) {
  if (cudaSetDevice(device_.index()) != cudaSuccess) return;
  for (void* flag : flags_) {
    cudaMemcpyAsync(flag, sent_.const_data_ptr(), kSignalBytes, cudaMemcpyHostToDevice, stream_);
  }
  const absl::Time deadline = absl::Now() + limit;
  while (!stops_ && absl::Now() < deadline) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& memory : memories_) {
        const std::vector<void*> pads = memory->get_signal_pad_ptrs();
        for (int rank = 0; rank < ranks_.world; ++rank) {
          if (rank == ranks_.rank) continue;
          Write(pads[ranks_.rank], rank, sent_);
          Write(pads[rank], ranks_.rank, taken_);
        }
      }
    }
    if (cudaStreamSynchronize(stream_) != cudaSuccess) return;
  }
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA && REPRISE_WITH_C10D
