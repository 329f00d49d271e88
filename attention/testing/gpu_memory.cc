#include "reprise/attention/testing/gpu_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

at::Tensor BytesOnGpu(int64_t num_bytes) {
  return at::empty({num_bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
}

}  // namespace

bool HasGpu() { return c10::cuda::device_count() > 0; }

int ComputeCapability() {
  const auto of_device = [device = c10::cuda::current_device()](cudaDeviceAttr attribute) {
    int value = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&value, attribute, device);
    CHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    return value;
  };
  return 10 * of_device(cudaDevAttrComputeCapabilityMajor) +
         of_device(cudaDevAttrComputeCapabilityMinor);
}

void* GpuMemory::Copy(const void* host, size_t num_bytes) {
  // Allocates one more byte, so that an empty array has an address.
  const auto size = static_cast<int64_t>(num_bytes) + 1;
  if (num_placed_ == copies_.size()) copies_.push_back(BytesOnGpu(size));
  const at::Tensor& copy = copies_[num_placed_++];
  CHECK_EQ(copy.numel(), size);
  const cudaError_t error = cudaMemcpyAsync(copy.data_ptr(), host, num_bytes, cudaMemcpyDefault,
                                            c10::cuda::getCurrentCUDAStream());
  CHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  return copy.data_ptr();
}

at::Tensor TensorOf(const TokenView& view, int64_t num_tokens, int num_heads, int head_dim) {
  return at::from_blob(view.data, {num_tokens, num_heads, head_dim},
                       {view.token_stride, view.head_stride, 1},
                       at::TensorOptions()
                           .dtype(ToScalarType(view.dtype))
                           .device(at::kCUDA, c10::cuda::current_device()));
}

GpuTileSchedule::GpuTileSchedule(const TileScheduleOptions& options) {
  absl::StatusOr<TileSchedulePlan> plan = PlanTileSchedule(options);
  CHECK(plan.ok()) << plan.status();
  plan_ = *plan;
  workspace_ = BytesOnGpu(plan_.workspace_bytes);
  schedule_ = MakeTileSchedule(plan_, workspace_.data_ptr());
  Poison();
}

void GpuTileSchedule::Poison() {
  const cudaError_t error = cudaMemsetAsync(workspace_.data_ptr(), 0x7f, plan_.workspace_bytes,
                                            c10::cuda::getCurrentCUDAStream());
  CHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

int MaxSplits(const KernelSchedule& schedule) {
  const auto read = [](const auto* from, int count, auto* to) {
    const cudaError_t error = cudaMemcpy(to, from, count * sizeof(*to), cudaMemcpyDeviceToHost);
    CHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  };
  int32_t num_merges = 0;
  read(schedule.counts + 1, 1, &num_merges);
  if (num_merges < 0 || num_merges > schedule.max_merges) return 0;
  std::vector<TileCombine> merges(num_merges);
  if (num_merges > 0) read(schedule.merges, num_merges, merges.data());
  int most = 0;
  for (const TileCombine& merge : merges) most = std::max(most, merge.num_partials);
  return most;
}

int MaxSplits(const TileSchedule& schedule) {
  const int most = MaxSplits(schedule.main);
  return schedule.has_short_rows() ? std::max(most, MaxSplits(schedule.short_rows)) : most;
}

}  // namespace reprise
