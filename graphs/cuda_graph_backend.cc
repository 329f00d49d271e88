#include "reprise/graphs/cuda_graph_backend.h"

#include "absl/status/status.h"

#ifdef REPRISE_WITH_CUDA

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/graphs/graph_pool.h"
#include "reprise/graphs/stream_capture.h"

namespace reprise {
namespace {

using Step = std::function<absl::Status()>;

// Runs `step`. Converts exceptions to a Status.
absl::Status Run(const Step& step) {
  try {
    return CatchTorch(step);
  } catch (...) {
    return absl::InternalError("a step threw something that is not a std::exception");
  }
}

void WarnUnlessOk(const absl::Status& status) {
  LOG_IF(WARNING, !status.ok()) << "a CUDA graph was not released: " << status;
}

absl::Status Synchronize(cudaStream_t stream) {
  return CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// Memory in use on the current device, as counted by the driver and by LibTorch's allocator.
struct MemoryUse {
  int64_t device_bytes = 0;    // of all processes
  int64_t reserved_bytes = 0;  // by the allocator, for all pools
};

absl::StatusOr<MemoryUse> MeasureMemory(c10::DeviceIndex device) {
  size_t free = 0;
  size_t total = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return MemoryUse{
      .device_bytes = static_cast<int64_t>(total - free),
      .reserved_bytes =
          c10::cuda::CUDACachingAllocator::getDeviceStats(device).reserved_bytes[kAll].current};
}

// A part of a step that is ready to run: a graph to launch, or work between two graphs.
struct Piece {
  cudaGraphExec_t exec = nullptr;
  Step work = {};
};

void Destroy(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (piece.exec == nullptr) continue;
    WarnUnlessOk(CudaStatus(cudaGraphExecDestroy(piece.exec), "cudaGraphExecDestroy"));
  }
}

// A step that is ready to run.
struct Executable {
  std::vector<Piece> pieces;
  GraphBytes bytes;
};

// Captures a step as graphs and the work between them.
class Recording {
 public:
  // `stream` and `pool` must outlive the recording.
  Recording(const c10::cuda::CUDAStream& stream, const GraphPool& pool)
      : stream_(stream), pool_(pool) {}
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { Destroy(pieces_); }

  // Begins a graph.
  absl::Status Begin() {
    REPRISE_ASSIGN_OR_RETURN(capture_, StreamCapture::Begin(stream_, pool_));
    return absl::OkStatus();
  }

  // Ends the current graph.
  absl::Status End() {
    const absl::StatusOr<cudaGraph_t> graph = capture_->End();
    capture_.reset();
    REPRISE_RETURN_IF_ERROR(graph.status());
    const absl::StatusOr<cudaGraphExec_t> exec = Instantiate(*graph);
    WarnUnlessOk(CudaStatus(cudaGraphDestroy(*graph), "cudaGraphDestroy"));
    REPRISE_RETURN_IF_ERROR(exec.status());
    if (*exec != nullptr) pieces_.push_back({.exec = *exec});
    return absl::OkStatus();
  }

  // Ends the current graph, appends `work` and begins another graph. Finish() also returns an error
  // that occurs here.
  absl::Status Cut(Step work) {
    if (capture_ != nullptr) status_.Update(End());
    if (!status_.ok()) return status_;
    pieces_.push_back({.work = std::move(work)});
    status_.Update(Begin());
    return status_;
  }

  // Returns the parts of the step. The caller owns them.
  absl::StatusOr<std::vector<Piece>> Finish(const absl::Status& step) {
    if (capture_ != nullptr) status_.Update(End());
    if (!step.ok()) return step;  // the cause, if both failed
    REPRISE_RETURN_IF_ERROR(status_);
    if (pieces_.empty()) {
      return absl::InvalidArgumentError("step must enqueue work on the backend's stream: got none");
    }
    return std::exchange(pieces_, {});
  }

 private:
  // Returns an executable graph, or null if the graph is empty.
  absl::StatusOr<cudaGraphExec_t> Instantiate(cudaGraph_t graph) const;

  const c10::cuda::CUDAStream& stream_;
  const GraphPool& pool_;
  std::unique_ptr<StreamCapture> capture_;
  absl::Status status_;  // errors of Cut() and End()
  std::vector<Piece> pieces_;
};

absl::StatusOr<cudaGraphExec_t> Recording::Instantiate(cudaGraph_t graph) const {
  size_t num_nodes = 0;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaGraphGetNodes(graph, nullptr, &num_nodes), "cudaGraphGetNodes"));
  if (num_nodes == 0) return nullptr;
  cudaGraphExec_t exec = nullptr;
  // The first flag frees memory that the graph itself allocated (cudaMallocAsync inside a library)
  // when the graph is launched again. The second flag keeps the stream's priority.
  REPRISE_RETURN_IF_ERROR(CudaStatus(
      cudaGraphInstantiateWithFlags(
          &exec, graph,
          cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority),
      "cudaGraphInstantiate"));
  // Uploads now: the first replay is then as fast as later replays, and the memory is measured.
  absl::Status status = CudaStatus(cudaGraphUpload(exec, stream_.stream()), "cudaGraphUpload");
  status.Update(Synchronize(stream_.stream()));
  if (status.ok()) return exec;
  cudaGraphExecDestroy(exec);
  return status;
}

class Backend : public CudaGraphBackend {
 public:
  explicit Backend(c10::cuda::CUDAStream stream) : stream_(stream), pool_(stream.device_index()) {}
  ~Backend() override {
    CHECK_EQ(num_live_graphs_, 0) << "graphs must be destroyed before their backend";
  }

  CUstream_st* stream() const override { return stream_.stream(); }

  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(Step step) override;
  absl::StatusOr<GraphBytes> TrialCapture(Step step) override;
  absl::Status RunBetweenGraphs(Step work) override;

 private:
  class Graph;

  // Warms up, captures into `pool`, instantiates and uploads. Converts exceptions to a Status.
  absl::StatusOr<Executable> MakeExecutable(const Step& step, const GraphPool& pool);
  absl::Status WarmUp(const Step& step);
  absl::StatusOr<std::vector<Piece>> Record(const Step& step, const GraphPool& pool);

  const c10::cuda::CUDAStream stream_;
  GraphPool pool_;
  Recording* recording_ = nullptr;  // the capture in progress, or null
  int num_live_graphs_ = 0;
};

class Backend::Graph : public CapturedGraph {
 public:
  Graph(Backend* backend, Executable executable)
      : backend_(backend), executable_(std::move(executable)) {
    ++backend_->num_live_graphs_;
  }

  ~Graph() override {
    // Waits, because the caller may free buffers that a replay in flight reads.
    WarnUnlessOk(Synchronize(backend_->stream_.stream()));
    Destroy(executable_.pieces);
    --backend_->num_live_graphs_;
  }

  absl::Status Replay() override {
    return CatchTorch([&] {
      const c10::cuda::CUDAGuard guard(backend_->stream_.device_index());
      for (const Piece& piece : executable_.pieces) {
        REPRISE_RETURN_IF_ERROR(piece.exec != nullptr ? Launch(piece.exec) : RunWork(piece.work));
      }
      return absl::OkStatus();
    });
  }

  int num_graphs() const override {
    return static_cast<int>(
        std::count_if(executable_.pieces.begin(), executable_.pieces.end(),
                      [](const Piece& piece) { return piece.exec != nullptr; }));
  }

  GraphBytes bytes() const override { return executable_.bytes; }

 private:
  absl::Status Launch(cudaGraphExec_t exec) const {
    return CudaStatus(cudaGraphLaunch(exec, backend_->stream_.stream()), "cudaGraphLaunch");
  }
  absl::Status RunWork(const Step& work) const {
    const c10::cuda::CUDAStreamGuard guard(backend_->stream_);
    return work();
  }

  Backend* const backend_;
  const Executable executable_;
};

absl::StatusOr<std::unique_ptr<CapturedGraph>> Backend::Capture(Step step) {
  REPRISE_ASSIGN_OR_RETURN(Executable executable, MakeExecutable(step, pool_));
  return std::make_unique<Graph>(this, std::move(executable));
}

absl::StatusOr<GraphBytes> Backend::TrialCapture(Step step) {
  return CatchTorchOr([&]() -> absl::StatusOr<GraphBytes> {
    const GraphPool pool(stream_.device_index());
    REPRISE_ASSIGN_OR_RETURN(const Executable executable, MakeExecutable(step, pool));
    Destroy(executable.pieces);
    return executable.bytes;
  });
}

absl::StatusOr<Executable> Backend::MakeExecutable(const Step& step, const GraphPool& pool) {
  if (step == nullptr) {
    return absl::InvalidArgumentError("step must be callable: got an empty function");
  }
  return CatchTorchOr([&]() -> absl::StatusOr<Executable> {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    REPRISE_RETURN_IF_ERROR(WarmUp(step));
    REPRISE_ASSIGN_OR_RETURN(const MemoryUse before, MeasureMemory(stream_.device_index()));
    REPRISE_ASSIGN_OR_RETURN(std::vector<Piece> pieces, Record(step, pool));
    absl::Cleanup destroy = [&] { Destroy(pieces); };
    REPRISE_ASSIGN_OR_RETURN(const MemoryUse after, MeasureMemory(stream_.device_index()));
    std::move(destroy).Cancel();

    const int64_t pool_bytes = std::max<int64_t>(after.reserved_bytes - before.reserved_bytes, 0);
    const int64_t all_bytes = after.device_bytes - before.device_bytes;
    return Executable{
        .pieces = std::move(pieces),
        .bytes = {.pool = pool_bytes, .driver = std::max<int64_t>(all_bytes - pool_bytes, 0)}};
  });
}

absl::Status Backend::WarmUp(const Step& step) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamIsCapturing(stream_.stream(), &capturing), "cudaStreamIsCapturing"));
  if (capturing != cudaStreamCaptureStatusNone) {
    return absl::FailedPreconditionError("a step must not be captured inside a capture");
  }
  absl::Status status = Run(step);
  // Synchronises after a failure too: the caller may then free memory that enqueued work uses.
  status.Update(Synchronize(stream_.stream()));
  return status;
}

absl::StatusOr<std::vector<Piece>> Backend::Record(const Step& step, const GraphPool& pool) {
  Recording recording(stream_, pool);
  REPRISE_RETURN_IF_ERROR(recording.Begin());
  recording_ = &recording;
  const absl::Status status = Run(step);
  recording_ = nullptr;
  return recording.Finish(status);
}

absl::Status Backend::RunBetweenGraphs(Step work) {
  if (work == nullptr) {
    return absl::InvalidArgumentError("work must be callable: got an empty function");
  }
  return recording_ != nullptr ? recording_->Cut(std::move(work)) : Run(work);
}

absl::StatusOr<c10::cuda::CUDAStream> ChooseStream(const CudaGraphBackendOptions& options) {
  const int num_devices = c10::cuda::device_count();
  if (num_devices == 0) return absl::InvalidArgumentError("device must be a GPU: found none");
  if (options.device < 0 || options.device >= num_devices) {
    return absl::InvalidArgumentError(absl::StrCat("device must be one of the GPUs: expected 0..",
                                                   num_devices - 1, ", got ", options.device));
  }
  const auto device = static_cast<c10::DeviceIndex>(options.device);
  at::globalContext().lazyInitDevice(c10::kCUDA);  // initialises the allocators, among others
  if (!options.stream.has_value()) {
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device);
  }
  const cudaStream_t stream = *options.stream;
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return absl::InvalidArgumentError(
        "stream must not be a default stream: default streams cannot be captured");
  }
  return c10::cuda::getStreamFromExternal(stream, device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGraphBackend>> CudaGraphBackend::Create(
    const CudaGraphBackendOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<CudaGraphBackend>> {
    REPRISE_ASSIGN_OR_RETURN(const c10::cuda::CUDAStream stream, ChooseStream(options));
    return std::make_unique<Backend>(stream);
  });
}

}  // namespace reprise

#else

namespace reprise {

absl::StatusOr<std::unique_ptr<CudaGraphBackend>> CudaGraphBackend::Create(
    const CudaGraphBackendOptions&) {
  return absl::UnimplementedError("this build has no CUDA, so it has no CUDA graphs");
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
