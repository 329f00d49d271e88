#include "reprise/runner/device/cuda_device_driver.h"

#ifdef REPRISE_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/cuda_device_scope.h"
#include "reprise/base/cuda_fence.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/graphs/cuda_graph_backend.h"
#include "reprise/runner/device/cuda_lanes.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/slots/refill.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA
namespace {

class EventTimer : public DeviceTimer {
 public:
  EventTimer(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  ~EventTimer() override {
    const CudaDeviceScope scope(device_);
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  absl::Status Allocate(int num_marks) {
    const CudaDeviceScope scope(device_);
    is_set_.resize(num_marks);
    for (int i = 0; i < num_marks; ++i) {
      cudaEvent_t event = nullptr;
      REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
      events_.push_back(event);
    }
    return absl::OkStatus();
  }

  void Mark(int mark) override {
    const CudaDeviceScope scope(device_);
    is_set_[mark] = cudaEventRecord(events_[mark], stream_) == cudaSuccess;
  }

  absl::StatusOr<double> NsBetween(int from, int to) override {
    if (!is_set_[from] || !is_set_[to]) {
      return absl::FailedPreconditionError("a mark was never set");
    }
    const CudaDeviceScope scope(device_);
    float ms = 0;
    const cudaError_t error = cudaEventElapsedTime(&ms, events_[from], events_[to]);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clears the error
      return absl::FailedPreconditionError("the device has not reached a mark");
    }
    REPRISE_RETURN_IF_ERROR(CudaStatus(error, "cudaEventElapsedTime"));
    return 1e6 * ms;
  }

 private:
  int device_;
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::vector<bool> is_set_;
};

class CudaDeviceDriver : public DeviceDriver {
 public:
  CudaDeviceDriver(c10::Device device, const DeviceLimits& limits,
                   std::unique_ptr<CudaGraphBackend> graphs, std::unique_ptr<LinearContext> linears,
                   std::unique_ptr<CudaLanes> lanes)
      : device_(device),
        limits_(limits),
        graphs_(std::move(graphs)),
        linears_(std::move(linears)),
        lanes_(std::move(lanes)),
        stream_(c10::cuda::getStreamFromExternal(graphs_->stream(), device.index())) {}

  ~CudaDeviceDriver() override {
    // If the device has failed, this returns immediately.
    const CudaDeviceScope scope(device_.index());
    cudaStreamSynchronize(graphs_->stream());
  }

  c10::Device device() const override { return device_; }
  c10::Stream stream() const override { return stream_; }
  CUstream_st* cuda_stream() const override { return graphs_->stream(); }

  absl::Status Health() override {
    const CudaDeviceScope scope(device_.index());
    const cudaError_t error = cudaStreamQuery(graphs_->stream());
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // clears the error
      return absl::OkStatus();
    }
    return CudaStatus(error, "cudaStreamQuery");
  }

  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) override {
    return CatchTorch([&] {
      // In nested work the stream is already current: skips the guard, which would look up the
      // device several times.
      if (IsCurrent()) return work();
      const c10::cuda::CUDAStreamGuard guard(stream_);
      return work();
    });
  }

  absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) override {
    const CudaDeviceScope scope(device_.index());
    return MappedBuffer::AllocateMapped(bytes);
  }

  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    return MakeCudaFence({.device = device_.index(), .stream = graphs_->stream()});
  }

  absl::StatusOr<std::unique_ptr<DeviceTimer>> MakeTimer(int num_marks) override {
    auto timer = std::make_unique<EventTimer>(device_.index(), graphs_->stream());
    REPRISE_RETURN_IF_ERROR(timer->Allocate(num_marks));
    return timer;
  }

  absl::Status Refill(const RefillArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchRefill(args, graphs_->stream());
  }

  absl::Status Sample(const SampleArgs& args) override {
    return OnStream([&] { return reprise::Sample(args); });
  }

  absl::Status ProposeNgrams(const NgramDraftsArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchNgramDrafts(args, graphs_->stream());
  }

  absl::Status DraftRows(const DraftRowsArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchDraftRows(args, graphs_->stream());
  }

  absl::Status AcceptDrafts(const AcceptDraftsArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchAcceptDrafts(args, graphs_->stream());
  }

  absl::Status RejectDrafts(const RejectDraftsArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchRejectDrafts(args, graphs_->stream());
  }

  absl::Status PlaceDrafts(const PlaceDraftsArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchPlaceDrafts(args, graphs_->stream());
  }

  absl::Status KeepStates(const KeepStatesArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchKeepStates(args, graphs_->stream());
  }

  absl::Status TreeTokens(const TreeTokensArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchTreeTokens(args, graphs_->stream());
  }

  absl::Status MoveKeys(const MoveKvArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchMoveKv(args, graphs_->stream());
  }

  absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions& options) override {
    TileScheduleOptions with_device = options;
    with_device.device = limits_;
    return PlanTileSchedule(with_device);
  }

  absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                         const TileSchedule& map) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchTileSchedule(batch, WindowOf(layer), map, lanes_->stream()).status();
  }

  absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                         const TileSchedule& map) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchTileSchedule(batch, WindowOf(layer), map, lanes_->stream()).status();
  }

  absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) override {
    const CudaDeviceScope scope(device_.index());
    return LaunchLocalVirtualBatch(args, lanes_->stream());
  }

  absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int)> work) override {
    const CudaDeviceScope scope(device_.index());
    return lanes_->Run(num_lanes, work);
  }

  absl::Status Upload(const void* from, void* to, int64_t bytes) override {
    const CudaDeviceScope scope(device_.index());
    return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                      graphs_->stream()),
                      "upload");
  }

  GraphBackend& graphs() override { return *graphs_; }
  LinearContext& linears() override { return *linears_; }

  std::optional<int64_t> free_bytes() override {
    const CudaDeviceScope scope(device_.index());
    // Unused memory that LibTorch caches would otherwise count as taken.
    c10::cuda::CUDACachingAllocator::emptyCache();
    size_t free = 0;
    size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return static_cast<int64_t>(free);
  }

  absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) override {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return CatchTorchOr([&]() -> absl::StatusOr<int64_t> {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      allocator::emptyCache();
      const int64_t before =
          allocator::getDeviceStats(device_.index()).reserved_bytes[kAll].current;
      allocator::resetPeakStats(device_.index());
      absl::Status status = work();
      status.Update(CudaStatus(cudaStreamSynchronize(graphs_->stream()), "cudaStreamSynchronize"));
      REPRISE_RETURN_IF_ERROR(status);
      return allocator::getDeviceStats(device_.index()).reserved_bytes[kAll].peak - before;
    });
  }

 private:
  // Returns whether the driver's stream is already current.
  bool IsCurrent() const {
    return c10::cuda::current_device() == device_.index() &&
           c10::cuda::getCurrentCUDAStream(device_.index()) == stream_;
  }

  c10::Device device_;
  DeviceLimits limits_;
  std::unique_ptr<CudaGraphBackend> graphs_;
  std::unique_ptr<LinearContext> linears_;
  std::unique_ptr<CudaLanes> lanes_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(
    c10::Device device, const DeviceDriverOptions& options) {
  const int num_devices = c10::cuda::device_count();
  if (num_devices == 0 || (device.has_index() && device.index() >= num_devices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device must be a GPU of this machine: expected one of ", num_devices,
                     ", got ", device.str()));
  }
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<DeviceDriver>> {
    const int index = device.has_index() ? device.index() : c10::cuda::current_device();
    const c10::Device chosen(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    const c10::cuda::CUDAGuard guard(chosen);
    REPRISE_ASSIGN_OR_RETURN(const DeviceLimits limits, DeviceLimitsOf(index));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGraphBackend> graphs,
                             CudaGraphBackend::Create({.device = index, .stream = options.stream}));
    // Work that is enqueued on the caller's current stream runs first.
    at::cuda::CUDAEvent given;
    given.record(c10::cuda::getCurrentCUDAStream(chosen.index()));
    given.block(c10::cuda::getStreamFromExternal(graphs->stream(), chosen.index()));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<LinearContext> linears,
                             MakeLinearContext(chosen, options.linears));
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaLanes> lanes, CudaLanes::Create(graphs->stream()));
    return std::make_unique<CudaDeviceDriver>(chosen, limits, std::move(graphs), std::move(linears),
                                              std::move(lanes));
  });
}

#else  // !REPRISE_WITH_CUDA

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCudaDeviceDriver(c10::Device,
                                                                   const DeviceDriverOptions&) {
  return absl::UnimplementedError("this is a build without CUDA: expected device cpu, got cuda");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
