// Parts of arguments that several operators share: counts, windows, and how to read a cache.

#ifndef REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_
#define REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/attention/torch_ops/kv_tensors.h"
#include "reprise/attention/torch_ops/operator_call.h"

namespace reprise {

// A size or an upper bound. Errors: InvalidArgument, naming the argument, unless 0 <= value < 2^31.
absl::StatusOr<int> CountArgument(const char* argument, int64_t value);

// A side of a window: none if absent or -1, which says so in FlashAttention and FlashInfer. Errors:
// as for CountArgument().
absl::StatusOr<std::optional<int>> WindowArgument(const char* argument,
                                                  std::optional<int64_t> value);

#define REPRISE_CACHE_OPTIONS_SCHEMA \
  "str layout=\"NHD\", str? kv_dtype=None, Tensor? k_scale=None, Tensor? v_scale=None"

// REQUIRES: the next arguments of `call` are those of REPRISE_CACHE_OPTIONS_SCHEMA.
void ReadCacheOptions(OperatorCall& call, KvTensors& kv);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_ARGUMENT_PARTS_H_
