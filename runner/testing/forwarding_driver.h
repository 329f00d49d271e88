// A DeviceDriver that forwards each call to another driver. Tests override the calls that they
// change.
//
//   class NoSampling : public ForwardingDriver {
//    public:
//     using ForwardingDriver::ForwardingDriver;
//     absl::Status Sample(const SampleArgs&) override {
//       return absl::InternalError("no sampling");
//     }
//   };
//   auto runner = ModelRunner::Create(
//       &model, {}, std::make_unique<NoSampling>(*MakeDeviceDriver(c10::kCPU, {})));

#ifndef REPRISE_RUNNER_TESTING_FORWARDING_DRIVER_H_
#define REPRISE_RUNNER_TESTING_FORWARDING_DRIVER_H_

#include <memory>
#include <optional>
#include <utility>

#include "reprise/runner/device/device_driver.h"

namespace reprise {

class ForwardingDriver : public DeviceDriver {
 public:
  explicit ForwardingDriver(std::unique_ptr<DeviceDriver> driver) : driver_(std::move(driver)) {}

  c10::Device device() const override { return driver_->device(); }
  c10::Stream stream() const override { return driver_->stream(); }
  CUstream_st* cuda_stream() const override { return driver_->cuda_stream(); }
  absl::Status Health() override { return driver_->Health(); }
  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) override {
    return driver_->OnStream(work);
  }
  absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) override {
    return driver_->AllocateMapped(bytes);
  }
  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override { return driver_->MakeFence(); }
  absl::StatusOr<std::unique_ptr<DeviceTimer>> MakeTimer(int num_marks) override {
    return driver_->MakeTimer(num_marks);
  }
  absl::Status Refill(const RefillArgs& args) override { return driver_->Refill(args); }
  absl::Status Sample(const SampleArgs& args) override { return driver_->Sample(args); }
  absl::Status ProposeNgrams(const NgramDraftsArgs& args) override {
    return driver_->ProposeNgrams(args);
  }
  absl::Status DraftRows(const DraftRowsArgs& args) override { return driver_->DraftRows(args); }
  absl::Status AcceptDrafts(const AcceptDraftsArgs& args) override {
    return driver_->AcceptDrafts(args);
  }
  absl::Status RejectDrafts(const RejectDraftsArgs& args) override {
    return driver_->RejectDrafts(args);
  }
  absl::Status PlaceDrafts(const PlaceDraftsArgs& args) override {
    return driver_->PlaceDrafts(args);
  }
  absl::Status KeepStates(const KeepStatesArgs& args) override { return driver_->KeepStates(args); }
  absl::Status TreeTokens(const TreeTokensArgs& args) override { return driver_->TreeTokens(args); }
  absl::Status MoveKeys(const MoveKvArgs& args) override { return driver_->MoveKeys(args); }
  absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions& options) override {
    return driver_->PlanWork(options);
  }
  absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                         const TileSchedule& map) override {
    return driver_->BuildWork(layer, batch, map);
  }
  absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                         const TileSchedule& map) override {
    return driver_->BuildWork(layer, batch, map);
  }
  absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) override {
    return driver_->BuildLocalRows(args);
  }
  absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int)> work) override {
    return driver_->InLanes(num_lanes, work);
  }
  absl::Status Upload(const void* from, void* to, int64_t bytes) override {
    return driver_->Upload(from, to, bytes);
  }
  GraphBackend& graphs() override { return driver_->graphs(); }
  LinearContext& linears() override { return driver_->linears(); }
  std::optional<int64_t> free_bytes() override { return driver_->free_bytes(); }
  absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) override {
    return driver_->MeasurePeakBytes(work);
  }

 private:
  std::unique_ptr<DeviceDriver> driver_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_FORWARDING_DRIVER_H_
