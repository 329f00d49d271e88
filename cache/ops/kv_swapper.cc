#include "reprise/cache/ops/kv_swapper.h"

#include <glog/logging.h>

#include <deque>
#include <utility>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "reprise/base/cuda_status.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA

// Swaps complete in the order of their tickets, because they run on one stream.
struct KvSwapper::Cuda {
  struct InFlight {
    int64_t ticket = 0;
    cudaEvent_t done = nullptr;
  };

  explicit Cuda(at::Device device)
      : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  ~Cuda() {
    LOG_IF(WARNING, cudaStreamSynchronize(stream.stream()) != cudaSuccess)
        << "a swapper is destroyed after its device has failed";
    for (const InFlight& swap : in_flight) cudaEventDestroy(swap.done);
    for (cudaEvent_t event : unused) cudaEventDestroy(event);
  }

  absl::StatusOr<cudaEvent_t> TakeEvent() {
    Retire();
    if (!unused.empty()) {
      const cudaEvent_t event = unused.back();
      unused.pop_back();
      return event;
    }
    cudaEvent_t event = nullptr;
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                       "cudaEventCreateWithFlags"));
    return event;
  }

  // Removes completed swaps.
  void Retire() {
    while (!in_flight.empty()) {
      if (cudaEventQuery(in_flight.front().done) == cudaErrorNotReady) {
        cudaGetLastError();  // clears the last error, cudaErrorNotReady
        return;
      }
      unused.push_back(in_flight.front().done);
      in_flight.pop_front();
    }
  }

  // Returns the event of a swap in flight, or null if the swap has completed.
  cudaEvent_t Find(SwapTicket ticket) {
    Retire();
    if (in_flight.empty() || ticket.value() < in_flight.front().ticket) return nullptr;
    return in_flight[ticket.value() - in_flight.front().ticket].done;
  }

  // Makes `later` wait for all work that is on `earlier`.
  absl::Status Order(cudaStream_t earlier, cudaStream_t later) {
    REPRISE_ASSIGN_OR_RETURN(const cudaEvent_t event, TakeEvent());
    // A wait uses the recording at its call, even if the event is recorded again.
    unused.push_back(event);
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, earlier), "cudaEventRecord"));
    return CudaStatus(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
  }

  const c10::cuda::CUDAStream stream;
  std::deque<InFlight> in_flight;  // consecutive tickets
  std::vector<cudaEvent_t> unused;
};

#else

struct KvSwapper::Cuda {};

#endif  // REPRISE_WITH_CUDA

absl::StatusOr<std::unique_ptr<KvSwapper>> KvSwapper::Create(const KvCache& cache,
                                                             const KvSwapperOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<KvSwapper>> {
    REPRISE_ASSIGN_OR_RETURN(BlockStore device_blocks, BlockStore::Over(cache, options.blocks));
    REPRISE_ASSIGN_OR_RETURN(BlockStore host_blocks,
                             BlockStore::Pinned(device_blocks, options.num_host_blocks));
    std::unique_ptr<KvSwapper> swapper(
        new KvSwapper(std::move(device_blocks), std::move(host_blocks), options.path));
#ifdef REPRISE_WITH_CUDA
    if (cache.device().is_cuda()) swapper->cuda_ = std::make_unique<Cuda>(cache.device());
#endif
    return swapper;
  });
}

KvSwapper::KvSwapper(BlockStore device_blocks, BlockStore host_blocks, CopyPath path)
    : device_blocks_(std::move(device_blocks)), host_blocks_(std::move(host_blocks)), path_(path) {}

KvSwapper::~KvSwapper() = default;

absl::StatusOr<SwapTicket> KvSwapper::SwapOut(absl::Span<const BlockCopy> copies) {
  return Swap(device_blocks_, host_blocks_, copies);
}

absl::StatusOr<SwapTicket> KvSwapper::SwapIn(absl::Span<const BlockCopy> copies) {
  return Swap(host_blocks_, device_blocks_, copies);
}

absl::StatusOr<SwapTicket> KvSwapper::Swap(const BlockStore& src, const BlockStore& dst,
                                           absl::Span<const BlockCopy> copies) {
#ifdef REPRISE_WITH_CUDA
  if (cuda_ != nullptr) {
    return CatchTorchOr([&]() -> absl::StatusOr<SwapTicket> {
      const c10::cuda::CUDAGuard device_guard(src.device());
      const auto current = c10::cuda::getCurrentCUDAStream(src.device().index());
      REPRISE_RETURN_IF_ERROR(cuda_->Order(current.stream(), cuda_->stream.stream()));
      const c10::cuda::CUDAStreamGuard stream_guard(cuda_->stream);
      REPRISE_RETURN_IF_ERROR(CopyBlocks(src, dst, copies, path_));
      REPRISE_ASSIGN_OR_RETURN(const cudaEvent_t done, cuda_->TakeEvent());
      cuda_->in_flight.push_back({.ticket = num_swaps_ + 1, .done = done});
      ++num_swaps_;
      REPRISE_RETURN_IF_ERROR(
          CudaStatus(cudaEventRecord(done, cuda_->stream.stream()), "cudaEventRecord"));
      return SwapTicket(num_swaps_);
    });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CopyBlocks(src, dst, copies, path_));
  return SwapTicket(++num_swaps_);
}

absl::Status KvSwapper::Await(SwapTicket ticket) {
  CHECK(ticket.value() >= 1 && ticket.value() <= num_swaps_) << "no swap has ticket " << ticket;
#ifdef REPRISE_WITH_CUDA
  if (cuda_ != nullptr) {
    return CatchTorch([&]() -> absl::Status {
      const cudaEvent_t done = cuda_->Find(ticket);
      if (done == nullptr) return absl::OkStatus();
      const auto current = c10::cuda::getCurrentCUDAStream(device_blocks_.device().index());
      return CudaStatus(cudaStreamWaitEvent(current.stream(), done, 0), "cudaStreamWaitEvent");
    });
  }
#endif
  return absl::OkStatus();
}

bool KvSwapper::Passed(SwapTicket ticket) {
  CHECK(ticket.value() >= 1 && ticket.value() <= num_swaps_) << "no swap has ticket " << ticket;
#ifdef REPRISE_WITH_CUDA
  if (cuda_ != nullptr) return cuda_->Find(ticket) == nullptr;
#endif
  return true;
}

absl::Status KvSwapper::Wait(SwapTicket ticket) {
  CHECK(ticket.value() >= 1 && ticket.value() <= num_swaps_) << "no swap has ticket " << ticket;
#ifdef REPRISE_WITH_CUDA
  if (cuda_ != nullptr) {
    const cudaEvent_t done = cuda_->Find(ticket);
    if (done == nullptr) return absl::OkStatus();
    return CudaStatus(cudaEventSynchronize(done), "cudaEventSynchronize");
  }
#endif
  return absl::OkStatus();
}

CUstream_st* KvSwapper::stream() const {
#ifdef REPRISE_WITH_CUDA
  if (cuda_ != nullptr) return cuda_->stream.stream();
#endif
  return nullptr;
}

}  // namespace reprise
