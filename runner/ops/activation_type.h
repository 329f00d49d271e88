// The dtypes of activations (float32, float16 and bfloat16) for the CPU implementations of
// operations.
//
//   REPRISE_RETURN_IF_ERROR(CheckActivationType("x", x));
//   VisitActivationType(x.scalar_type(), [&](auto zero) {
//     using T = decltype(zero);  // float, c10::Half or c10::BFloat16; converts to and from float
//     Normalise(x.const_data_ptr<T>(), ...);
//   });

#ifndef REPRISE_RUNNER_OPS_ACTIVATION_TYPE_H_
#define REPRISE_RUNNER_OPS_ACTIVATION_TYPE_H_

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <glog/logging.h>

#include <string_view>

#include "absl/status/status.h"
#include "reprise/base/shape_check.h"

namespace reprise {

// Returns InvalidArgument, which names the argument, unless `tensor` has one of the dtypes above.
inline absl::Status CheckActivationType(std::string_view argument, const at::Tensor& tensor) {
  return CheckDType(argument, tensor, {at::kFloat, at::kHalf, at::kBFloat16});
}

// Calls `visit` with a zero of the C++ type of `type`. REQUIRES: `type` is one of the dtypes above.
template <typename Visitor>
void VisitActivationType(at::ScalarType type, Visitor&& visit) {
  switch (type) {
    case at::kFloat:
      return visit(float{});
    case at::kHalf:
      return visit(c10::Half{});
    case at::kBFloat16:
      return visit(c10::BFloat16{});
    default:
      LOG(FATAL) << "not an activation type: " << c10::toString(type);
  }
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ACTIVATION_TYPE_H_
