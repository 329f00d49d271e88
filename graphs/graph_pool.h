// The memory that captured graphs allocate: a private pool of LibTorch's caching allocators, for
// device memory and pinned host memory.
//
// A replay reuses the addresses of tensors that were allocated during the capture, so these tensors
// must not share a pool with eager code. All graphs use the same pool. If the largest graph is
// captured first, the memory of that graph is usually enough for all later graphs.
//
//   GraphPool pool(device);
//   StreamCapture capture = ... into pool.id() ...          // graphs/stream_capture.h
//
// Lifetime: the pool must outlive its graphs. Its destructor returns the memory to the device,
// except memory of live tensors. Functions may throw c10::Error; callers catch it
// (base/torch_status.h). Thread safety: not thread-safe. Only in builds with CUDA.

#ifndef REPRISE_GRAPHS_GRAPH_POOL_H_
#define REPRISE_GRAPHS_GRAPH_POOL_H_

#ifdef REPRISE_WITH_CUDA

#include <ATen/cuda/MemPool.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <memory>

namespace reprise {

class GraphPool {
 public:
  // Creates an empty pool. Captures allocate its memory.
  explicit GraphPool(c10::DeviceIndex device);
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;
  ~GraphPool();

  c10::DeviceIndex device() const { return device_; }
  c10::MempoolId_t id() const { return id_; }

 private:
  c10::DeviceIndex device_;
  std::unique_ptr<at::cuda::MemPool> pool_;
  c10::MempoolId_t id_;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_GRAPHS_GRAPH_POOL_H_
