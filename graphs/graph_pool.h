// The memory that captured graphs allocate: a private pool of LibTorch's caching allocators, on the
// device and for pinned host memory.
//
// Tensors made inside a capture are at addresses that a replay uses again, so they must not share a
// pool with eager code. Graphs captured one after another reuse the pool: captured largest first,
// they all fit into the memory of the first one.
//
//   GraphPool pool(device);
//   StreamCapture capture = ... into pool.id() ...          // graphs/stream_capture.h
//
// Life: the pool outlives its graphs; its destructor returns its memory to the device, except that
// of live tensors. Its functions may throw c10::Error: callers catch (base/torch_status.h). Thread
// safety: none. Only in builds with CUDA.

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
  // Empty; takes memory when captures allocate it.
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
