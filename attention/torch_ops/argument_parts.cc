#include "reprise/attention/torch_ops/argument_parts.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::StatusOr<int> CountArgument(const char* argument, int64_t value) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (value >= 0 && value <= kMost) return static_cast<int>(value);
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " is out of range: expected 0 .. ", kMost, ", got ", value));
}

absl::StatusOr<std::optional<int>> WindowArgument(const char* argument,
                                                  std::optional<int64_t> value) {
  if (!value || *value == -1) return std::optional<int>();
  return CountArgument(argument, *value);
}

void ReadCacheOptions(OperatorCall& call, KvTensors& kv) {
  kv.layout = call.String("layout");
  kv.kv_dtype = call.MaybeString("kv_dtype");
  kv.k_scale = call.MaybeTensor("k_scale");
  kv.v_scale = call.MaybeTensor("v_scale");
}

}  // namespace reprise
