// RoPE as config.json describes it, in either of the two forms that Hugging Face has used:
//
//   "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}
//   "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, ...}
//
// The second is that of transformers 5. In the first the type may also be called "type".

#ifndef EXAMPLES_LLAMA_ROPE_CONFIG_H_
#define EXAMPLES_LLAMA_ROPE_CONFIG_H_

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"
#include "examples/llama/rope_frequencies.h"

namespace reprise {

struct RopeDefaults {
  // max_position_embeddings: what original_max_position_embeddings is if it is absent.
  int max_seq_len = 0;
  double theta = 10000;
};

// `config` is the whole of config.json. With neither form there, RoPE is plain with the default
// theta. YaRN's attention factor, unless given, is 0.1 ln(factor) + 1, or the ratio of two of its
// kind if mscale and mscale_all_dim are there; its factor, if null, is max_position_embeddings /
// original_max_position_embeddings.
// Errors: InvalidArgument, naming the field: both forms at once, a type that is not "default",
// "linear", "llama3" or "yarn", a parameter missing, out of range or unknown, rotation of only a
// part of the head.
absl::StatusOr<RopeConfig> ReadRopeConfig(const JsonFields& config, const RopeDefaults& defaults);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_ROPE_CONFIG_H_
