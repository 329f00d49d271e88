#include "attention/work_map_cuda.h"

#include "attention/work_map_build.h"
#include "base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include "attention/kernels/work_map_kernel.h"
#include "base/cuda_status.h"
#endif

namespace reprise {
namespace {

template <typename Batch>
absl::Status Launch(const Batch& batch, const LayerWindow& window, const WorkMap& map,
                    CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, map));
#ifdef REPRISE_WITH_CUDA
  WorkMapJob job = {.rows = RowsOf(batch, window)};
  for (const RowsOfTileMap& part : MapsOf(map, LongestShortRow(batch, map))) {
    job.maps[job.num_maps] = part.map;
    job.lens[job.num_maps++] = part.lens;
  }
  return CudaStatus(LaunchWorkMapKernel(job, stream), "LaunchBuildWorkMap");
#else
  static_cast<void>(window);
  static_cast<void>(stream);
  return absl::UnimplementedError("LaunchBuildWorkMap: this build has no CUDA");
#endif
}

}  // namespace

absl::Status LaunchBuildWorkMap(const PagedBatch& batch, const LayerWindow& window,
                                const WorkMap& map, CUstream_st* stream) {
  return Launch(batch, window, map, stream);
}

absl::Status LaunchBuildWorkMap(const RaggedBatch& batch, const LayerWindow& window,
                                const WorkMap& map, CUstream_st* stream) {
  return Launch(batch, window, map, stream);
}

}  // namespace reprise
