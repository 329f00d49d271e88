// Test data on a GPU: copies of host arrays, and a work map with its workspace.
//
//   GpuMemory memory;
//   PagedBatch batch = fixture.Batch(memory.Placement());   // on the current device
//   GpuWorkMap work(options);
//   work.Poison();
//   ASSERT_TRUE(LaunchWorkMap(batch, window, work.map(), stream).ok());
//
// Thread safety: none; one owner. Memory is freed with the objects, after the pending work of
// LibTorch's current stream.

#ifndef REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_
#define REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/token_view.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"

namespace reprise {

// Whether there is a GPU; tests skip where there is none.
bool HasGpu();

// Compute capability of the current GPU; 90 is 9.0.
int ComputeCapability();

class GpuMemory {
 public:
  // The address of a copy of the bytes, aligned to 16 bytes and more. On the current stream.
  void* Copy(const void* host, size_t num_bytes);

  // The next copies go over those made so far, in their order, to the same addresses: other contents
  // for a captured graph. CHECK-fails if one has another size.
  void Rewind() { num_placed_ = 0; }

  reprise::Placement Placement() {
    return [this](const void* host, size_t num_bytes) { return Copy(host, num_bytes); };
  }

 private:
  std::vector<at::Tensor> copies_;
  size_t num_placed_ = 0;  // since the last Rewind()
};

// A view of device memory as a tensor [num_tokens, num_heads, head_dim].
at::Tensor TensorOf(const TokenView& view, int64_t num_tokens, int num_heads, int head_dim);

class GpuWorkMap {
 public:
  // CHECK-fails on options that cannot be planned.
  explicit GpuWorkMap(const WorkMapOptions& options);

  const WorkMap& map() const { return map_; }
  const WorkMapPlan& plan() const { return plan_; }

  // Fills the workspace with bytes that make huge counts and floats, on the current stream.
  void Poison();

 private:
  WorkMapPlan plan_;
  at::Tensor workspace_;  // [bytes] uint8
  WorkMap map_;
};

// The largest number of pieces of a range of a map in device memory; 0 if no range is cut, or the map
// was not built since it was poisoned. Waits.
int MostPieces(const TileMap& map);
// Of either of its maps.
int MostPieces(const WorkMap& map);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_GPU_MEMORY_H_
