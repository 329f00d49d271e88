// Weights for tests and measurements: of a model's shapes, made on the device, without a
// checkpoint.
//
//   REPRISE_ASSIGN_OR_RETURN(MlaWeights weights, MakeRandomMlaWeights(config, {}));

#ifndef EXAMPLES_MLA_RANDOM_MLA_WEIGHTS_H_
#define EXAMPLES_MLA_RANDOM_MLA_WEIGHTS_H_

#include "absl/status/statusor.h"
#include "examples/llama/random_weights.h"
#include "examples/mla/mla_config.h"
#include "examples/mla/mla_weights.h"

namespace reprise {

// Matrices are normal, of a deviation that keeps lengths (1 / sqrt(in_features)), so that attention
// is far from uniform; norms are spread around 1. The same options give the same bits on the same
// kind of device. LibTorch's own generator is left as it was.
// Errors: ResourceExhausted if the device's memory does not suffice.
absl::StatusOr<MlaWeights> MakeRandomMlaWeights(const MlaConfig& config,
                                                const RandomWeightsOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_MLA_RANDOM_MLA_WEIGHTS_H_
