// The interface between a model runner and a device: memory, ordering of work, and the parts of a
// step outside the model.
//
// The CPU driver executes each call synchronously. The CUDA driver enqueues it on one long-lived
// non-default stream, which is also used for warm-up, capture and replay.
//
//   absl::StatusOr<std::unique_ptr<DeviceDriver>> driver = MakeDeviceDriver(c10::kCPU, {});
//   (*driver)->OnStream([&] { return model.Forward(step).status(); });
//
// Streams. All work runs on stream(), in the order of the calls, except within InLanes(). It runs
// after all work that had been enqueued on the caller's current stream of the device (for example,
// a model's weights) when the driver was created. Allocate and fill tensors that the driver's work
// uses inside OnStream().
//
// Devices. Any device may be current when a method is called, and is current again afterwards.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_DEVICE_DEVICE_DRIVER_H_
#define REPRISE_RUNNER_DEVICE_DEVICE_DRIVER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/speculation/accept_drafts.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/move_kv.h"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/fence.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/graphs/graph_backend.h"
#include "reprise/runner/device/device_timer.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/sampling/sampling.h"
#include "reprise/runner/slots/refill.h"
#include "reprise/runner/speculation/keep_states.h"
#include "reprise/runner/speculation/ngram_drafts.h"
#include "reprise/runner/speculation/place_drafts.h"
#include "reprise/runner/speculation/reject_drafts.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct DeviceDriverOptions {
  LinearContextOptions linears = {};
  // GPU: the stream of the work. Must be a non-default stream of the driver's device, and must
  // outlive the driver. nullopt: the driver creates a stream.
  std::optional<CUstream_st*> stream = {};
};

class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  // The device, with its index, and the stream of the calls below.
  virtual c10::Device device() const = 0;
  virtual c10::Stream stream() const = 0;
  // The stream for callers of CUDA; nullptr on the CPU.
  virtual CUstream_st* cuda_stream() const = 0;

  // OK, or the reason why the device can do no more work: an illegal access or a lost device, which
  // CUDA reports from every later call. Does not wait.
  virtual absl::Status Health() = 0;

  // Runs `work` with the driver's stream current. The calls below use that stream automatically.
  virtual absl::Status OnStream(absl::FunctionRef<absl::Status()> work) = 0;

  // Allocates memory that the host reads and writes, and that the device accesses at
  // MappedBuffer::device().
  virtual absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) = 0;

  // Returns a fence that completes after all work that was enqueued before the fence is armed.
  virtual absl::StatusOr<std::unique_ptr<Fence>> MakeFence() = 0;

  // Returns a timer for the work on the stream. REQUIRES: num_marks >= 1.
  virtual absl::StatusOr<std::unique_ptr<DeviceTimer>> MakeTimer(int num_marks) = 0;

  virtual absl::Status Refill(const RefillArgs& args) = 0;
  virtual absl::Status Sample(const SampleArgs& args) = 0;

  // Speculative steps: drafts and their verification.
  virtual absl::Status ProposeNgrams(const NgramDraftsArgs& args) = 0;
  virtual absl::Status DraftRows(const DraftRowsArgs& args) = 0;
  virtual absl::Status AcceptDrafts(const AcceptDraftsArgs& args) = 0;
  // Updates the tokens of Sample() at positions with drafts (DraftAcceptance::kRejection).
  virtual absl::Status RejectDrafts(const RejectDraftsArgs& args) = 0;
  // Draft heads: write their drafts into the step's tokens, and store the hidden states of slots
  // (of the newest token, or for heads with attention of the last tokens).
  virtual absl::Status PlaceDrafts(const PlaceDraftsArgs& args) = 0;
  virtual absl::Status KeepStates(const KeepStatesArgs& args) = 0;
  // Only for trees: the tree masks of nodes, and the moves of accepted keys.
  virtual absl::Status TreeTokens(const TreeTokensArgs& args) = 0;
  virtual absl::Status MoveKeys(const MoveKvArgs& args) = 0;

  // Plans the tile schedule of a layer class for this device; replaces options.device by the limits
  // of this device. Returns a plan without workspace if the device needs no schedule.
  virtual absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions& options) = 0;
  // Builds the tile schedule of a step for layers like `layer`.
  virtual absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                                 const TileSchedule& map) = 0;
  virtual absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                                 const TileSchedule& map) = 0;
  // Splits the rows of a step at attention chunks, into buffers on the device.
  virtual absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) = 0;

  // Runs work(0) to work(num_lanes - 1). Work that BuildWork() and BuildLocalRows() enqueue in
  // different lanes may run concurrently on the device; later work waits for all of it. May be
  // captured.
  virtual absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int lane)> work) = 0;

  // Copies data that the host wrote to memory of AllocateMapped() to the device. `from` must not
  // change before the copy has run.
  virtual absl::Status Upload(const void* from, void* to, int64_t bytes) = 0;

  virtual GraphBackend& graphs() = 0;
  virtual LinearContext& linears() = 0;

  // Number of bytes that can still be allocated, after LibTorch's unused cached memory is freed; 0
  // if CUDA fails. nullopt on the CPU, where no limit is known.
  virtual std::optional<int64_t> free_bytes() = 0;

  // Runs `work` as OnStream() does, and waits for it. Returns the maximum number of bytes that
  // LibTorch reserved on the device during `work`, beyond the bytes reserved before; 0 on the CPU.
  // Errors: as `work`.
  virtual absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) = 0;
};

// Creates the driver of a device. A GPU without an index is the current GPU. Errors: Unimplemented
// if the device is neither a CPU nor a GPU, or for a GPU in a build without CUDA; InvalidArgument
// if the GPU does not exist, or if the stream cannot be captured; Internal if the GPU does not
// respond.
absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeDeviceDriver(c10::Device device,
                                                               const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_DEVICE_DRIVER_H_
