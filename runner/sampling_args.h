// What sampling works on, as pointers: shared by the CPU's and the GPU's form. No LibTorch.

#ifndef RUNNER_SAMPLING_ARGS_H_
#define RUNNER_SAMPLING_ARGS_H_

#include <cstdint>

#include "base/dtype.h"
#include "runner/sampling_features.h"
#include "runner/slot_state.h"

namespace reprise {

struct SamplingArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* logits = nullptr;   // [num_rows, vocab_size]
  int64_t logits_stride = 0;      // elements, from row to row
  int num_rows = 0;
  int vocab_size = 0;
  SlotState slots;
  const int32_t* sample_slot = nullptr;  // [num_rows]
  int32_t* out = nullptr;                // [num_rows]
  SamplingFeatures features = SamplingFeatures::kGeneral;
};

}  // namespace reprise

#endif  // RUNNER_SAMPLING_ARGS_H_
