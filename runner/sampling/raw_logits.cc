#include "reprise/runner/sampling/raw_logits.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckKeepRawLogits(const RawLogitsArgs& args) {
  if (args.dtype != DType::kFloat32 && args.dtype != DType::kFloat16 &&
      args.dtype != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype: expected float32, float16 or bfloat16, got ", std::string(DTypeName(args.dtype))));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("vocab_size", args.vocab_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", args.num_slots, 0));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("logits", args.logits));
  REPRISE_RETURN_IF_ERROR(CheckGiven("raw", args.raw));
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", args.sample_slot));
  REPRISE_RETURN_IF_ERROR(CheckGiven("params", args.params));
  if (args.num_rows > 1)
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("logits_stride", args.logits_stride, args.vocab_size));
  return args.num_rows > 1 ? CheckAtLeast("raw_stride", args.raw_stride, args.vocab_size)
                           : absl::OkStatus();
}

void KeepRawLogitsOnHost(const RawLogitsArgs& args) {
  const int64_t bytes = SizeOf(args.dtype);
  for (int row = 0; row < args.num_rows; ++row) {
    if (!KeepsRaw(args, row)) continue;
    std::memcpy(static_cast<std::byte*>(args.raw) + row * args.raw_stride * bytes,
                static_cast<const std::byte*>(args.logits) + row * args.logits_stride * bytes,
                static_cast<size_t>(args.vocab_size * bytes));
  }
}

}  // namespace reprise
