// How the kernel of fp8_tile_linear.h divides a product among the CTAs of a GPU: plain arithmetic,
// for host code and tests. No CUDA, no LibTorch.
//
// As runner/ops/few_rows/tile_linear_plan.h says, but for a box: it has 128 in_features, which are
// 128 bytes of each row of the tile, and two boxes of x, one after the other.
//
// Thread safety: values.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_

#include "reprise/base/host_device.h"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"

namespace reprise {

inline constexpr int kFp8TileBox = 128;  // in_features: 128 bytes of the weight
inline constexpr int kFp8TileXBoxes = kFp8TileBox / kTileBox;

struct Fp8TilePlan : TileLinearPlan {
  REPRISE_HOST_DEVICE int stage_bytes() const {
    return form.boxes * (tile_rows + kFp8TileXBoxes * columns) * kTileBoxLine;
  }
};

// Returns the form by which a product of num_rows, 1 to kMaxTileLinearRows, rows of x is quickest
// on an H200. A rule and no measurement, so that bits are the same in all processes.
TileForm Fp8TileForm(int num_rows, int out_features);

// Returns the plan of such a product, for a GPU that runs `max_clusters` clusters of this form at
// once. All arguments are positive. `stages` is 0 if the form cannot compute this.
Fp8TilePlan PlanFp8Tile(const TileForm& form, int num_rows, int out_features, int in_features,
                        int max_clusters);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_TILE_PLAN_H_
