// Heads of packed tokens, as pointers: how ops on q, k and v pass them to their CPU and GPU forms.

#ifndef RUNNER_OPS_HEADS_VIEW_H_
#define RUNNER_OPS_HEADS_VIEW_H_

#include <cstdint>

namespace reprise {

// [num_tokens, num_heads, dim], the dims of a head contiguous. Strides in elements.
struct HeadsView {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int num_heads = 0;
};

}  // namespace reprise

#endif  // RUNNER_OPS_HEADS_VIEW_H_
