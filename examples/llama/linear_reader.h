// Linear layers of a checkpoint, asked from a reader; their values come with its Run().
//
//   REPRISE_ASSIGN_OR_RETURN(
//       Linear qkv, AddLinear(reader, "model.layers.0.self_attn.",
//                             {{"q_proj"}, {"k_proj"}, {"v_proj"}}, LinearBias::kAdded));
//
// Thread safety: that of the reader.

#ifndef EXAMPLES_LLAMA_LINEAR_READER_H_
#define EXAMPLES_LLAMA_LINEAR_READER_H_

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/checkpoint_reader.h"
#include "runner/ops/linear.h"

namespace reprise {

enum class LinearBias { kNone, kAdded };

constexpr LinearBias BiasIf(bool is_added) {
  return is_added ? LinearBias::kAdded : LinearBias::kNone;
}

// One product for all `parts`, their outputs side by side. The tensors are called `prefix`, the
// part's name, and ".weight" or ".bias". Errors: those of CheckpointReader::Add() and
// Linear::Create().
absl::StatusOr<Linear> AddLinear(CheckpointReader& reader, std::string_view prefix,
                                 const std::vector<TensorPart>& parts, LinearBias bias);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LINEAR_READER_H_
