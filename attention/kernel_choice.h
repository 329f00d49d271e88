// The choice of CUDA kernels for the attention of a layer. It is part of a tile schedule's plan
// (TileScheduleOptions::kernels, LayerSpec::kernels), and all calls with the schedule follow it.

#ifndef REPRISE_ATTENTION_KERNEL_CHOICE_H_
#define REPRISE_ATTENTION_KERNEL_CHOICE_H_

#include <optional>

#include "reprise/base/dtype.h"

namespace reprise {

struct KernelChoice {
  // The MMA type. Absent: chosen by the types of q and of the cache, and for fp8 caches also by
  // whether keys are loaded unconverted. float32 selects CUDA cores; tensor cores were faster for
  // all measured shapes.
  std::optional<DType> products = {};
  // 1 excludes tuned kernels. Some calls need a general kernel: those with a custom mask, a scale
  // per q head, slopes per sequence, rotary embedding, new keys from tensors, a separate rope part,
  // keys that are not whole 16-byte chunks, or keys whose type is neither fp8 nor the type of q and
  // of the products. For head dims of 129 to 256, such a call needs a schedule that was planned
  // with 1. For other head dims, it can use any schedule.
  int max_tier = 2;

  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_KERNEL_CHOICE_H_
