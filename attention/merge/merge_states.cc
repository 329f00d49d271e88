#include "reprise/attention/merge/merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/element_access.h"
#include "reprise/base/status_macros.h"

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

// Computes the weight of each part. Returns the merged lse. Without keys, weights are 0 and lse is
// -inf.
float Weights(const MergeStatesArgs& args, int64_t token, int64_t head, float* weights) {
  float largest = kNoKeys;
  for (int part = 0; part < args.num_parts; ++part) {
    largest = std::max(largest, PartLse(args, part, token, head));
  }
  std::fill_n(weights, args.num_parts, 0.0f);
  if (largest == kNoKeys) return kNoKeys;
  if (args.sinks) largest = std::max(largest, args.sinks[head]);
  float total = args.sinks ? std::exp(args.sinks[head] - largest) : 0.0f;
  for (int part = 0; part < args.num_parts; ++part) {
    weights[part] = std::exp(PartLse(args, part, token, head) - largest);
    total += weights[part];
  }
  for (int part = 0; part < args.num_parts; ++part) weights[part] /= total;
  return largest + std::log(total);
}

}  // namespace

absl::Status CheckMergeStates(const MergeStatesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_parts", args.num_parts, 1, kMaxMergeParts));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_heads", args.num_heads, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim", args.head_dim, 1));
  REPRISE_RETURN_IF_ERROR(CheckDType("part.dtype", args.part.dtype));
  REPRISE_RETURN_IF_ERROR(CheckDType("out.dtype", args.out.dtype));
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.out.data == nullptr) {
    return absl::InvalidArgumentError("out: expected an address, got none");
  }
  for (int part = 0; part < args.num_parts; ++part) {
    if (args.part_out[part] == nullptr || args.part_lse[part] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("part_out[", part, "], part_lse[", part, "]: expected addresses, got none"));
    }
  }
  return absl::OkStatus();
}

void MergeStatesOnHost(const MergeStatesArgs& args) {
  float weights[kMaxMergeParts];
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const float lse = Weights(args, token, head, weights);
      const int64_t from = args.part.Offset(token, head);
      const int64_t to = args.out.Offset(token, head);
      for (int dim = 0; dim < args.head_dim; ++dim) {
        float sum = 0;
        for (int part = 0; part < args.num_parts; ++part) {
          if (weights[part] == 0.0f) continue;  // its out may be NaN
          sum +=
              weights[part] * LoadElement<float>(args.part_out[part], args.part.dtype, from + dim);
        }
        StoreElement(args.out.data, args.out.dtype, to + dim, sum);
      }
      if (args.lse.data) args.lse.data[args.lse.Offset(token, head)] = lse;
    }
  }
}

absl::Status MergeStates(const MergeStatesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckMergeStates(args));
  MergeStatesOnHost(args);
  return absl::OkStatus();
}

absl::Status CheckConvertLse(const ConvertLseArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_heads", args.num_heads, 0));
  if (args.num_tokens == 0 || args.num_heads == 0) return absl::OkStatus();
  return CheckGiven({{"from", args.from.data}, {"to", args.to.data}});
}

void ConvertLseOnHost(const ConvertLseArgs& args) {
  const float factor = LogFactor(args);
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    for (int64_t head = 0; head < args.num_heads; ++head) ConvertLseAt(args, factor, token, head);
  }
}

absl::Status ConvertLse(const ConvertLseArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckConvertLse(args));
  ConvertLseOnHost(args);
  return absl::OkStatus();
}

}  // namespace reprise
