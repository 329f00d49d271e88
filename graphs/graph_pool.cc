#include "reprise/graphs/graph_pool.h"

#ifdef REPRISE_WITH_CUDA

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <glog/logging.h>

#include "absl/status/status.h"
#include "reprise/base/torch_status.h"

namespace reprise {

GraphPool::GraphPool(c10::DeviceIndex device) : device_(device) {
  const c10::cuda::CUDAGuard guard(device);  // MemPool uses the current device
  pool_ = std::make_unique<at::cuda::MemPool>();
  id_ = pool_->id();
  // LibTorch cannot capture into a pool again once no user holds it. MemPool is a user of the
  // device pool. For the host pool, the following calls add a user: a capture that begins, matches
  // no stream, ends, and is released only by the destructor.
  at::HostAllocator* const pinned = at::getHostAllocator(at::kCUDA);
  pinned->begin_allocate_to_pool(id_, [](c10::Stream) { return false; });
  pinned->end_allocate_to_pool(id_);
}

GraphPool::~GraphPool() {
  const absl::Status status = CatchTorch([&] {
    const c10::cuda::CUDAGuard guard(device_);
    at::getHostAllocator(at::kCUDA)->release_pool(id_);
    pool_.reset();
    return absl::OkStatus();
  });
  LOG_IF(WARNING, !status.ok()) << "the memory of a graph pool was not released: " << status;
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
