// What rotary embedding works on, as pointers: shared by the CPU's and the GPU's form.

#ifndef RUNNER_OPS_ROTARY_ARGS_H_
#define RUNNER_OPS_ROTARY_ARGS_H_

#include <cstdint>

#include "base/dtype.h"
#include "cache/kv_layer.h"
#include "runner/ops/heads_view.h"

namespace reprise {

// The norm of heads before they turn (runner/ops/head_norm.h).
struct RotaryNorm {
  bool is_on = false;
  const void* q_weight = nullptr;  // [head_dim_qk] of q's dtype; null: none
  const void* k_weight = nullptr;
  float eps = 0;
};

struct RotaryArgs {
  DType dtype = DType::kFloat32;  // of q, k, v
  HeadsView q;                    // rotated in place
  HeadsView k;                    // rotated in place if there is no slot_mapping
  HeadsView v;                    // read if there is a slot_mapping
  int num_tokens = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  const int32_t* positions = nullptr;  // [num_tokens]
  const float* table = nullptr;        // [max_positions, rotary_dim] cosines, then sines
  int max_positions = 0;
  int rotary_dim = 0;
  const int64_t* slot_mapping = nullptr;  // [num_slots]; null: nothing is written to a cache
  int num_slots = 0;                      // <= num_tokens
  KvLayer kv;
  RotaryNorm norm;
};

}  // namespace reprise

#endif  // RUNNER_OPS_ROTARY_ARGS_H_
