// What a model runner needs from a device: memory, ordering of work, and the parts of a step
// outside the model.
//
// The CPU driver executes each call at once; the CUDA driver enqueues it on one long-lived
// non-default stream, on which warm-up, capture and replay run too. This is the only difference
// between devices that ModelRunner sees.
//
//   absl::StatusOr<std::unique_ptr<DeviceDriver>> driver = MakeDeviceDriver(c10::kCPU, {});
//   (*driver)->OnStream([&] { return model.Forward(step).status(); });
//
// Streams. All work is on stream(), in the order of the calls. What the caller's current stream of
// the device had been given when the driver was made (a model's weights, for example) comes before
// it. Tensors that the driver's work uses later are allocated and filled inside OnStream().
//
// Devices. Any device may be current when a method is called; it is current again afterwards.
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
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"
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
  // GPU: the stream of the work, of the driver's device, not a default stream, and alive as long as
  // the driver. nullopt: a stream of the driver's own.
  std::optional<CUstream_st*> stream = {};
};

class DeviceDriver {
 public:
  virtual ~DeviceDriver() = default;

  // With its index, and the stream of the calls below.
  virtual c10::Device device() const = 0;
  virtual c10::Stream stream() const = 0;
  // The same for callers of CUDA; nullptr on the CPU.
  virtual CUstream_st* cuda_stream() const = 0;

  // OK, or why the device can do no more work: an illegal access or a lost device, which CUDA
  // reports from every later call. Does not wait.
  virtual absl::Status Health() = 0;

  // Runs `work` with the driver's stream current. The calls below use that stream by themselves.
  virtual absl::Status OnStream(absl::FunctionRef<absl::Status()> work) = 0;

  // Memory that the host writes or reads and the device reaches at device_data().
  virtual absl::StatusOr<MappedBuffer> AllocateMapped(int64_t bytes) = 0;

  // A fence after all work enqueued before it is armed.
  virtual absl::StatusOr<std::unique_ptr<Fence>> MakeFence() = 0;

  // Marks in the work enqueued so far, and the times between them. REQUIRES: num_marks >= 1.
  virtual absl::StatusOr<std::unique_ptr<DeviceTimer>> MakeTimer(int num_marks) = 0;

  virtual absl::Status Refill(const RefillArgs& args) = 0;
  virtual absl::Status Sample(const SampleArgs& args) = 0;

  // Speculative steps: drafts, and their verification.
  virtual absl::Status ProposeNgrams(const NgramDraftsArgs& args) = 0;
  virtual absl::Status DraftRows(const DraftRowsArgs& args) = 0;
  virtual absl::Status AcceptDrafts(const AcceptDraftsArgs& args) = 0;
  // In place of the choices of Sample() at places with drafts (DraftAcceptance::kRejection).
  virtual absl::Status RejectDrafts(const RejectDraftsArgs& args) = 0;
  // Of heads: their drafts into the step's tokens, and the hidden states of the slots: of the newest
  // token, or for heads that attend of the last ones.
  virtual absl::Status PlaceDrafts(const PlaceDraftsArgs& args) = 0;
  virtual absl::Status KeepStates(const KeepStatesArgs& args) = 0;
  // Only for trees: what nodes see, and the moves of accepted keys.
  virtual absl::Status TreeTokens(const TreeTokensArgs& args) = 0;
  virtual absl::Status MoveKeys(const MoveKvArgs& args) = 0;

  // How attention of a layer class is cut on this device; the driver fills in options.device. A
  // plan without workspace if no map is needed.
  virtual absl::StatusOr<WorkMapPlan> PlanWork(const WorkMapOptions& options) = 0;
  // Makes the map of a step for layers like `layer`.
  virtual absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                                 const WorkMap& map) = 0;
  virtual absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                                 const WorkMap& map) = 0;
  // Cuts the rows of a step at chunks, into buffers on the device.
  virtual absl::Status BuildLocalRows(const LocalVirtualBatchArgs& args) = 0;

  // Runs work(0) to work(num_lanes - 1). Work that the two calls above enqueue in different lanes
  // may run concurrently on the device; later work waits for all of it. May be captured.
  virtual absl::Status InLanes(int num_lanes, absl::FunctionRef<absl::Status(int lane)> work) = 0;

  // Copies what the host wrote into memory of AllocateMapped() to the device. `from` must not
  // change before the copy has run.
  virtual absl::Status Upload(const void* from, void* to, int64_t bytes) = 0;

  virtual GraphBackend& graphs() = 0;
  virtual LinearContext& linears() = 0;

  // Bytes that may still be allocated; nullopt on the CPU, where no limit is known.
  virtual std::optional<int64_t> free_bytes() = 0;

  // Runs `work` as OnStream() does, waits for it, and returns the most bytes that tensors took
  // meanwhile, beyond what was allocated before; 0 on the CPU. Errors: the work's.
  virtual absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) = 0;
};

// A GPU without an index is the current one. Errors: Unimplemented for a device other than a CPU or
// a GPU, or a GPU in a build without CUDA; InvalidArgument for a stream that cannot be captured;
// Internal if the GPU does not answer.
absl::StatusOr<std::unique_ptr<DeviceDriver>> MakeDeviceDriver(c10::Device device,
                                                               const DeviceDriverOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_DEVICE_DEVICE_DRIVER_H_
