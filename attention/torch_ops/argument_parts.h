// Arguments that several operators share: counts, windows, and cache options.

#ifndef REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_
#define REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/attention/torch_ops/kv_tensors.h"
#include "reprise/attention/torch_ops/operator_call.h"

namespace reprise {

// Returns a size or an upper bound as an int.
// Errors: InvalidArgument that names the argument, unless 0 <= value < 2^31.
absl::StatusOr<int> CountArgument(const char* argument, int64_t value);

// Returns one side of a window, or nullopt if the value is absent or -1. FlashAttention and
// FlashInfer use -1 for no window.
// Errors: see CountArgument().
absl::StatusOr<std::optional<int>> WindowArgument(const char* argument,
                                                  std::optional<int64_t> value);

#define REPRISE_CACHE_OPTIONS_SCHEMA \
  "str layout=\"NHD\", str? kv_dtype=None, Tensor? k_scale=None, Tensor? v_scale=None"

// Reads the arguments of REPRISE_CACHE_OPTIONS_SCHEMA. REQUIRES: they are the next arguments of
// `call`.
void ReadCacheOptions(OperatorCall& call, KvTensors& kv);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_
