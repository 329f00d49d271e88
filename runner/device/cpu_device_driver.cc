#include "reprise/runner/device/cpu_device_driver.h"

#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "reprise/base/passed_fence.h"
#include "reprise/base/status_macros.h"
#include "reprise/graphs/recorded_backend.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

class ClockTimer : public DeviceTimer {
 public:
  explicit ClockTimer(int num_marks) : marks_(num_marks) {}

  void Mark(int mark) override { marks_[mark] = std::chrono::steady_clock::now(); }

  absl::StatusOr<double> NsBetween(int from, int to) override {
    if (!marks_[from] || !marks_[to]) return absl::FailedPreconditionError("a mark was never set");
    return std::chrono::duration<double, std::nano>(*marks_[to] - *marks_[from]).count();
  }

 private:
  std::vector<std::optional<std::chrono::steady_clock::time_point>> marks_;
};

class CpuDeviceDriver : public DeviceDriver {
 public:
  CpuDeviceDriver(std::unique_ptr<GraphBackend> graphs, std::unique_ptr<LinearContext> linears)
      : graphs_(std::move(graphs)), linears_(std::move(linears)) {}

  c10::Device device() const override { return c10::kCPU; }
  c10::Stream stream() const override { return c10::Stream(c10::Stream::DEFAULT, device()); }
  CUstream_st* cuda_stream() const override { return nullptr; }
  absl::Status Health() override { return absl::OkStatus(); }

  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) override { return work(); }

  absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) override {
    return MappedBuffer::AllocateOnHost(bytes);
  }

  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    return std::make_unique<PassedFence>();  // all work is complete when a call returns
  }

  absl::StatusOr<std::unique_ptr<DeviceTimer>> MakeTimer(int num_marks) override {
    return std::make_unique<ClockTimer>(num_marks);
  }

  absl::Status Refill(const RefillArgs& args) override {
    RefillOnHost(args);
    return absl::OkStatus();
  }

  absl::Status Sample(const SampleArgs& args) override { return reprise::Sample(args); }

  absl::Status ProposeNgrams(const NgramDraftsArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckNgramDrafts(args));
    NgramDraftsOnHost(args);
    return absl::OkStatus();
  }
  absl::Status DraftRows(const DraftRowsArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckDraftRows(args));
    DraftRowsOnHost(args);
    return absl::OkStatus();
  }
  absl::Status AcceptDrafts(const AcceptDraftsArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckAcceptDrafts(args));
    AcceptDraftsOnHost(args);
    return absl::OkStatus();
  }
  absl::Status RejectDrafts(const RejectDraftsArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckRejectDrafts(args));
    RejectDraftsOnHost(args);
    return absl::OkStatus();
  }
  absl::Status PlaceDrafts(const PlaceDraftsArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckPlaceDrafts(args));
    PlaceDraftsOnHost(args);
    return absl::OkStatus();
  }
  absl::Status KeepStates(const KeepStatesArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckKeepStates(args));
    KeepStatesOnHost(args);
    return absl::OkStatus();
  }
  absl::Status TreeTokens(const TreeTokensArgs& args) override {
    REPRISE_RETURN_IF_ERROR(CheckTreeTokens(args));
    TreeTokensOnHost(args);
    return absl::OkStatus();
  }
  absl::Status MoveKeys(const MoveKvArgs& args) override { return MoveKv(args); }

  // Attention on the CPU divides its own work.
  absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions&) override {
    return TileSchedulePlan{};
  }
  absl::Status BuildWork(const AttentionParams&, const PagedBatch&, const TileSchedule&) override {
    return absl::OkStatus();
  }
  absl::Status BuildWork(const AttentionParams&, const RaggedBatch&, const TileSchedule&) override {
    return absl::OkStatus();
  }

  absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) override {
    return BuildLocalVirtualBatch(args).status();
  }

  absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int)> work) override {
    for (int lane = 0; lane < num_lanes; ++lane) REPRISE_RETURN_IF_ERROR(work(lane));
    return absl::OkStatus();
  }

  absl::Status Upload(const void* from, void* to, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  GraphBackend& graphs() override { return *graphs_; }
  LinearContext& linears() override { return *linears_; }
  std::optional<int64_t> free_bytes() override { return std::nullopt; }
  absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) override {
    REPRISE_RETURN_IF_ERROR(work());
    return 0;
  }

 private:
  std::unique_ptr<GraphBackend> graphs_;
  std::unique_ptr<LinearContext> linears_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeCpuDeviceDriver(
    const DeviceDriverOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<LinearContext> linears,
                           MakeLinearContext(c10::kCPU, options.linears));
  return std::make_unique<CpuDeviceDriver>(MakeRecordedBackend(), std::move(linears));
}

}  // namespace reprise
