// How the kernel of fp8_tile_linear.h distributes a GEMM over the CTAs of a GPU. Plain arithmetic,
// for host code and tests. Does not depend on CUDA or LibTorch.
//
// See runner/ops/few_rows/tile_linear_plan.h. A box differs: it has 128 in_features, which are 128
// bytes of each row of the tile, and two boxes of x, one after the other. No GEMM is gated or wide,
// and `stores_directly` is false.
//
// Thread safety: value types.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_

#include "reprise/base/host_device.h"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"

namespace reprise {

inline constexpr int kFp8TileBox = 128;  // in_features: 128 bytes per row of the weight
inline constexpr int kFp8TileXBoxes = kFp8TileBox / kTileBox;

struct Fp8TilePlan : TileLinearPlan {
  REPRISE_HOST_DEVICE int stage_bytes() const {
    return form.boxes * (tile_rows + kFp8TileXBoxes * columns) * kTileBoxLine;
  }
};

// Returns the form to use for a GEMM with `num_rows` rows of x, 1 to kMaxTileLinearRows. This is a
// fixed rule, tuned for an H200, so that results are bitwise identical in all processes.
TileForm Fp8TileForm(int num_rows, int out_features);

// Returns the plan of such a GEMM for a GPU that can run `max_clusters` clusters of this form
// concurrently. `stages` of the result is 0 if the form cannot compute the GEMM. REQUIRES: all
// numbers are positive.
Fp8TilePlan PlanFp8Tile(const TileForm& form, int num_rows, int out_features, int in_features,
                        int max_clusters);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_
