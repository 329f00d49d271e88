// Test data on a GPU: copies of host arrays, and a tile schedule with its workspace.
//
//   GpuMemory memory;
//   PagedBatch batch = fixture.Batch(memory.Placement());   // on the current device
//   GpuTileSchedule work(options);
//   work.Poison();
//   ASSERT_TRUE(LaunchTileSchedule(batch, window, work.schedule(), stream).ok());
//
// Thread safety: not thread-safe; one owner. Destroying an object returns its memory to LibTorch's
// allocator, which orders reuse only after work of the stream that was current at the allocation.

#ifndef REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_
#define REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/attention/token_view.h"

namespace reprise {

// Whether this machine has a GPU that CUDA can use. GPU tests are skipped if it has none.
bool HasGpu();

// Returns the compute capability of the current GPU; 90 is 9.0.
int ComputeCapability();

class GpuMemory {
 public:
  // Copies the bytes on the current stream. Returns the address of the copy, aligned to at least 16
  // bytes.
  void* Copy(const void* host, size_t num_bytes);

  // Makes the following copies overwrite the existing copies in order, at the same addresses. A
  // captured graph then reads the new contents. Copy() CHECK-fails if a copy differs in size.
  void Rewind() { num_placed_ = 0; }

  reprise::Placement Placement() {
    return [this](const void* host, size_t num_bytes) { return Copy(host, num_bytes); };
  }

 private:
  std::vector<at::Tensor> copies_;
  size_t num_placed_ = 0;  // since the last Rewind()
};

// Returns a view of device memory as a tensor [num_tokens, num_heads, head_dim].
at::Tensor TensorOf(const TokenView& view, int64_t num_tokens, int num_heads, int head_dim);

class GpuTileSchedule {
 public:
  // CHECK-fails if the options cannot be planned.
  explicit GpuTileSchedule(const TileScheduleOptions& options);

  const TileSchedule& schedule() const { return schedule_; }
  const TileSchedulePlan& plan() const { return plan_; }

  // Fills the workspace with bytes that give huge counts and floats, on the current stream.
  void Poison();

 private:
  TileSchedulePlan plan_;
  at::Tensor workspace_;  // [bytes] uint8
  TileSchedule schedule_;
};

// Returns the maximum number of KV splits of a Q tile in a schedule in device memory. Returns 0 if
// no tile is split, or if the schedule was not built since it was poisoned. Waits.
int MaxSplits(const KernelSchedule& schedule);
// Returns the maximum over both schedules of `schedule`.
int MaxSplits(const TileSchedule& schedule);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_
