// Unstable: any version may change this header (docs/embedding.md).
//
// Writes a model folder as Hugging Face has them, with random weights: for tests and measurements
// of loading.
//
//   REPRISE_ASSIGN_OR_RETURN(nlohmann::json config, PublicConfig("llama-3.1-8b"));
//   REPRISE_RETURN_IF_ERROR(WriteRandomCheckpoint("/dev/shm/llama", config, {}));
//   LoadDecoderWeights("/dev/shm/llama", ...);

#ifndef REPRISE_MODELS_DECODER_RANDOM_CHECKPOINT_H_
#define REPRISE_MODELS_DECODER_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json_fwd.hpp"

namespace reprise {

struct RandomCheckpointOptions {
  // A file takes tensors in their order up to this many bytes, at least one tensor; the default is
  // Hugging Face's own limit.
  int64_t max_shard_bytes = 5'000'000'000;
  uint32_t seed = 1;
};

// Makes `folder` if need be and writes to it
//   config.json                        as given
//   model.safetensors                  if one file is enough, else
//   model-00001-of-0000N.safetensors   and so on, with
//   model.safetensors.index.json       its total_size and weight_map
// Elements are of the config's dtype (bfloat16 if it has none), normal with deviation 0.02, drawn
// once and repeated: each tensor begins at a different place of the repetition. Uses as much memory
// as the largest tensor.
// Errors: those of ParseDecoderConfig() and WriteSafetensors(); Internal if the folder cannot be
// made.
absl::Status WriteRandomCheckpoint(const std::string& folder, const nlohmann::json& config,
                                   const RandomCheckpointOptions& options);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_RANDOM_CHECKPOINT_H_
