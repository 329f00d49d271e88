// An array on the GPU for kernel tests, with upload, poison and download. Does not use LibTorch.
//
//   DeviceArray<int32_t> lens(64);
//   lens.Upload(host);                    // the first host.size() elements
//   LaunchSomething(lens.data(), stream);
//   EXPECT_EQ(lens.Download(), expected);
//
// Copies wait for the device. Thread safety: not thread-safe; one owner. CUDA errors are CHECK
// failures.

#ifndef REPRISE_BASE_TESTING_DEVICE_ARRAY_H_
#define REPRISE_BASE_TESTING_DEVICE_ARRAY_H_

#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

inline void CheckCuda(cudaError_t error) { CHECK_EQ(error, cudaSuccess); }

// Checks the result of a launcher, a Status or a cudaError_t.
inline void CheckLaunch(cudaError_t error) { CheckCuda(error); }
inline void CheckLaunch(const absl::Status& status) { CHECK(status.ok()) << status; }

// Whether this machine has a GPU. GPU tests are skipped if it has none.
inline bool HasCudaDevice() {
  int num_devices = 0;
  return cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    void* memory = nullptr;
    // Allocates one more element, which detects overruns and gives empty arrays an address.
    CheckCuda(cudaMalloc(&memory, (size + 1) * sizeof(T)));
    memory_.reset(static_cast<T*>(memory));
    Poison();
  }

  T* data() const { return memory_.get(); }
  size_t size() const { return size_; }

  // Fills all bytes, and one element past the end, so that they read as huge counts and invalid
  // slots.
  void Poison() { CheckCuda(cudaMemset(data(), 0x7b, (size_ + 1) * sizeof(T))); }

  void Upload(absl::Span<const T> host) {
    CHECK_LE(host.size(), size_);
    CheckCuda(cudaMemcpy(data(), host.data(), host.size() * sizeof(T), cudaMemcpyDefault));
  }

  // Returns the elements. CHECK-fails if the element past the end was written.
  std::vector<T> Download() const {
    std::vector<T> host(size_ + 1);
    CheckCuda(cudaMemcpy(host.data(), data(), host.size() * sizeof(T), cudaMemcpyDefault));
    T poison;
    __builtin_memset(&poison, 0x7b, sizeof(T));
    CHECK(host.back() == poison) << "written beyond the end of " << size_ << " elements";
    host.pop_back();
    return host;
  }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };

  size_t size_;
  std::unique_ptr<T, Free> memory_;
};

// A stream, and work that is captured on it once and can be replayed many times. CHECK-fails if the
// work contains nodes other than kernels and memsets: builders must not copy or synchronise.
class CapturedWork {
 public:
  template <typename Work>
  explicit CapturedWork(Work work) {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work(stream_);
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream_, &graph));
    CheckNodes(graph);
    CheckCuda(cudaGraphInstantiate(&executable_, graph, 0));
    CheckCuda(cudaGraphDestroy(graph));
  }
  ~CapturedWork() {
    cudaGraphExecDestroy(executable_);
    cudaStreamDestroy(stream_);
  }
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Waits for the device before the replay, because of uploads, and then for the replay.
  void Replay() {
    CheckCuda(cudaDeviceSynchronize());
    CheckCuda(cudaGraphLaunch(executable_, stream_));
    CheckCuda(cudaStreamSynchronize(stream_));
  }

 private:
  static void CheckNodes(cudaGraph_t graph) {
    size_t num_nodes = 0;
    CheckCuda(cudaGraphGetNodes(graph, nullptr, &num_nodes));
    std::vector<cudaGraphNode_t> nodes(num_nodes);
    if (num_nodes > 0) CheckCuda(cudaGraphGetNodes(graph, nodes.data(), &num_nodes));
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      CheckCuda(cudaGraphNodeGetType(node, &type));
      CHECK(type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset)
          << "a node of type " << type << " in the graph of a builder";
    }
  }

  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_BASE_TESTING_DEVICE_ARRAY_H_
