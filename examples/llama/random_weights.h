// Weights for measurements: of a model's shapes, made on the device, without a checkpoint.
//
//   REPRISE_ASSIGN_OR_RETURN(LlamaConfig config, LlamaPreset("llama-3.1-8b"));
//   REPRISE_ASSIGN_OR_RETURN(LlamaWeights weights,
//                            MakeRandomWeights(config, {.device = c10::kCUDA}));

#ifndef EXAMPLES_LLAMA_RANDOM_WEIGHTS_H_
#define EXAMPLES_LLAMA_RANDOM_WEIGHTS_H_

#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/llama_config.h"
#include "examples/llama/llama_weights.h"

namespace reprise {

struct RandomWeightsOptions {
  c10::Device device = c10::kCPU;
  DType dtype = DType::kBFloat16;
  uint64_t seed = 1;
};

// Matrices, embeddings and biases are normal with deviation 0.02, as models are before training;
// norms leave lengths as they are (weights of 1, or of 0 where 1 is added). The same options give
// the same bits on the same kind of device. LibTorch's own generator is left as it was.
// Errors: ResourceExhausted if the device's memory does not suffice.
absl::StatusOr<LlamaWeights> MakeRandomWeights(const LlamaConfig& config,
                                               const RandomWeightsOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_RANDOM_WEIGHTS_H_
