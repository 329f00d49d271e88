// Whether weights are of the shapes that a config says.
//
//   REPRISE_RETURN_IF_ERROR(CheckMlaWeights(config, weights));

#ifndef EXAMPLES_MLA_MLA_WEIGHTS_CHECK_H_
#define EXAMPLES_MLA_MLA_WEIGHTS_CHECK_H_

#include "absl/status/status.h"
#include "examples/mla/mla_config.h"
#include "examples/mla/mla_weights.h"

namespace reprise {

// Errors: InvalidArgument, naming the weight, its expected shape and the one it has.
absl::Status CheckMlaWeights(const MlaConfig& config, const MlaWeights& weights);

}  // namespace reprise

#endif  // EXAMPLES_MLA_MLA_WEIGHTS_CHECK_H_
