#include "attention/merge/merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/element_access.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

absl::Status CheckDType(absl::string_view name, DType dtype) {
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      name, ": expected float32, float16 or bfloat16, got ", std::string(DTypeName(dtype))));
}

// Computes the weight of each part and the merged lse; without any key, weights 0 and -inf.
float Weights(const MergeStatesParams& params, int64_t token, int64_t head, float* weights) {
  float largest = kNoKeys;
  for (int part = 0; part < params.num_parts; ++part) {
    largest = std::max(largest, PartLse(params, part, token, head));
  }
  std::fill_n(weights, params.num_parts, 0.0f);
  if (largest == kNoKeys) return kNoKeys;
  if (params.sinks) largest = std::max(largest, params.sinks[head]);
  float total = params.sinks ? std::exp(params.sinks[head] - largest) : 0.0f;
  for (int part = 0; part < params.num_parts; ++part) {
    weights[part] = std::exp(PartLse(params, part, token, head) - largest);
    total += weights[part];
  }
  for (int part = 0; part < params.num_parts; ++part) weights[part] /= total;
  return largest + std::log(total);
}

}  // namespace

absl::Status CheckMergeStates(const MergeStatesParams& params) {
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_parts", params.num_parts, 1, kMaxMergeParts));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", params.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_heads", params.num_heads, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim", params.head_dim, 1));
  REPRISE_RETURN_IF_ERROR(CheckDType("part.dtype", params.part.dtype));
  REPRISE_RETURN_IF_ERROR(CheckDType("out.dtype", params.out.dtype));
  if (params.num_tokens == 0) return absl::OkStatus();
  if (params.out.data == nullptr) {
    return absl::InvalidArgumentError("out: expected an address, got none");
  }
  for (int part = 0; part < params.num_parts; ++part) {
    if (params.part_out[part] == nullptr || params.part_lse[part] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("part_out[", part, "], part_lse[", part, "]: expected addresses, got none"));
    }
  }
  return absl::OkStatus();
}

absl::Status MergeStates(const MergeStatesParams& params) {
  REPRISE_RETURN_IF_ERROR(CheckMergeStates(params));
  float weights[kMaxMergeParts];
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    for (int64_t head = 0; head < params.num_heads; ++head) {
      const float lse = Weights(params, token, head, weights);
      const int64_t from = params.part.Offset(token, head);
      const int64_t to = params.out.Offset(token, head);
      for (int dim = 0; dim < params.head_dim; ++dim) {
        float sum = 0;
        for (int part = 0; part < params.num_parts; ++part) {
          if (weights[part] == 0.0f) continue;  // its out may be NaN
          sum += weights[part] *
                 LoadElement<float>(params.part_out[part], params.part.dtype, from + dim);
        }
        StoreElement(params.out.data, params.out.dtype, to + dim, sum);
      }
      if (params.lse.data) {
        params.lse.data[token * params.lse.token_stride + head * params.lse.head_stride] = lse;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
