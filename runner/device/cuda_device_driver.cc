#include "runner/device/cuda_device_driver.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/metadata/local_virtual_batch.h"
#include "attention/work_map/work_map_build.h"
#include "base/cuda_fence.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "graphs/cuda_graph_backend.h"
#include "runner/device/cuda_lanes.h"
#include "runner/ops/linear.h"
#include "runner/slots/refill.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA
namespace {

class CudaDeviceDriver : public DeviceDriver {
 public:
  CudaDeviceDriver(c10::Device device, int num_sms, std::unique_ptr<CudaGraphBackend> graphs,
                   std::unique_ptr<LinearContext> linears, std::unique_ptr<CudaLanes> lanes)
      : device_(device),
        num_sms_(num_sms),
        graphs_(std::move(graphs)),
        linears_(std::move(linears)),
        lanes_(std::move(lanes)),
        stream_(c10::cuda::getStreamFromExternal(graphs_->stream(), device.index())) {}

  ~CudaDeviceDriver() override { stream_.synchronize(); }

  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) override {
    return CatchTorch([&] {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      return work();
    });
  }

  absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) override {
    return MappedBuffer::AllocateMapped(bytes);
  }

  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    return MakeCudaFence({.device = device_.index(), .stream = graphs_->stream()});
  }

  absl::Status Refill(const RefillArgs& args) override {
    return LaunchRefill(args, graphs_->stream());
  }

  absl::Status Sample(const SampleArgs& args) override {
    return OnStream([&] { return reprise::Sample(args); });
  }

  absl::StatusOr<WorkMapPlan> PlanWork(const WorkMapOptions& options) override {
    WorkMapOptions with_device = options;
    with_device.num_sms = num_sms_;
    return PlanWorkMap(with_device);
  }

  absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                         const WorkMap& map) override {
    return LaunchWorkMap(batch, WindowOf(layer), map, lanes_->stream());
  }

  absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                         const WorkMap& map) override {
    return LaunchWorkMap(batch, WindowOf(layer), map, lanes_->stream());
  }

  absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) override {
    return LaunchLocalVirtualBatch(args, lanes_->stream());
  }

  absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int)> work) override {
    return lanes_->Run(num_lanes, work);
  }

  absl::Status Upload(const void* from, void* to, int64_t bytes) override {
    return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                      graphs_->stream()),
                      "upload");
  }

  GraphBackend& graphs() override { return *graphs_; }
  LinearContext& linears() override { return *linears_; }

  std::optional<int64_t> free_bytes() override {
    // Memory that LibTorch caches without using it would count as taken.
    c10::cuda::CUDACachingAllocator::emptyCache();
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return static_cast<int64_t>(free);
  }

 private:
  c10::Device device_;
  int num_sms_;
  std::unique_ptr<CudaGraphBackend> graphs_;
  std::unique_ptr<LinearContext> linears_;
  std::unique_ptr<CudaLanes> lanes_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(
    c10::Device device, const LinearContextOptions& linear_options) {
  const int index = device.has_index() ? device.index() : 0;
  const int num_devices = c10::cuda::device_count();
  if (index >= num_devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("device must be a GPU of this machine: expected ", "fewer than ", num_devices,
                     ", got cuda:", index));
  }
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<DeviceDriver>> {
    const c10::Device chosen(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    const c10::cuda::CUDAGuard guard(chosen);
    int num_sms = 0;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, index),
                   "cudaDeviceGetAttribute"));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGraphBackend> graphs,
                             CudaGraphBackend::Create({.device = index}));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<LinearContext> linears,
                             MakeLinearContext(chosen, linear_options));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaLanes> lanes, CudaLanes::Create(graphs->stream()));
    return std::make_unique<CudaDeviceDriver>(chosen, num_sms, std::move(graphs),
                                              std::move(linears), std::move(lanes));
  });
}

#else  // !REPRISE_WITH_CUDA

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(c10::Device,
                                                                   const LinearContextOptions&) {
  return absl::UnimplementedError("this is a build without CUDA: expected device cpu, got cuda");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
