// The choice of CUDA kernels for the attention of a layer. It belongs to a work map's plan
// (WorkMapOptions::kernels, LayerSpec::kernels), and all calls with the map follow it.

#ifndef REPRISE_ATTENTION_KERNEL_CHOICE_H_
#define REPRISE_ATTENTION_KERNEL_CHOICE_H_

#include <optional>

#include "reprise/base/dtype.h"

namespace reprise {

struct KernelChoice {
  // The type of the products, if it differs from the type of q. float32 selects CUDA cores. Tensor cores
  // were faster for all measured shapes.
  std::optional<DType> products = {};
  // 1 excludes tuned kernels. Some calls need a general kernel: with a custom mask, a scale per q head,
  // slopes per sequence, rotary embedding, new keys from tensors, or keys that are not whole chunks of
  // 16 bytes. For head dims of 129 to 256 the map of such a call must be planned with 1. For other head
  // dims such a call can use any map.
  int max_tier = 2;

  friend bool operator==(const KernelChoice&, const KernelChoice&) = default;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_KERNEL_CHOICE_H_
