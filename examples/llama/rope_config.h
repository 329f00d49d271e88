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

// `config` is the whole of config.json, `max_seq_len` its max_position_embeddings, the default of
// llama3's original_max_position_embeddings. With neither form there, RoPE is plain with theta
// 10000.
// Errors: InvalidArgument, naming the field: both forms at once, a type that is not "default",
// "linear" or "llama3", a parameter missing, out of range or unknown, rotation of only a part of
// the head.
absl::StatusOr<RopeConfig> ReadRopeConfig(const JsonFields& config, int max_seq_len);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_ROPE_CONFIG_H_
