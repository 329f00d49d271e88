// Shared by the CPU and the GPU implementation of runner/ops/rotary.h. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_OPS_ROTARY_ARGS_H_
#define REPRISE_RUNNER_OPS_ROTARY_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/runner/ops/head_norm_args.h"
#include "reprise/runner/ops/op_options.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// The norm of heads before the rotation (runner/ops/head_norm.h).
struct RotaryNorm {
  bool is_on = false;
  const void* q_weight = nullptr;  // [head_dim_qk] of q's dtype; null: no weight
  const void* k_weight = nullptr;
  float eps = 0;
  NormWeight form = NormWeight::kScale;
};

struct RotaryArgs {
  DType dtype = DType::kFloat32;  // q, k and v
  HeadsView q;                    // rotated in place
  HeadsView k;                    // rotated in place if slot_mapping is null
  HeadsView v;                    // read if slot_mapping is not null
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

// Whether LaunchRotary() can apply `args.norm`: all dims are rotated; half a head consists of at
// most 32 vectors of 16 bytes; heads, weights and the table are aligned to 16 bytes. REQUIRES:
// args.norm.is_on. Only in builds with CUDA.
bool CanNormaliseWhileRotating(const RotaryArgs& args);

// Enqueues the kernel. REQUIRES: the arguments pass the checks of rotary.h; args.norm is off, or
// CanNormaliseWhileRotating(args). Errors: those of CudaStatus() (base/cuda_status.h). Only in
// builds with CUDA.
absl::Status LaunchRotary(const RotaryArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ROTARY_ARGS_H_
