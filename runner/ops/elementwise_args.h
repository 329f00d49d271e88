// Shared by the CPU and the GPU implementation of runner/ops/elementwise.h: the arguments, and the
// functions as structs that instantiate one loop and one kernel. Does not depend on LibTorch.
//
// Members of a function struct F:
//
//   F::kIsGated           x has rows of 2 * size elements: the first half is the input of the
//                         function, the second half multiplies the rounded result
//   F::kHasHeads          a row may consist of several heads with gaps between them
//   F::Factor(up)         gated functions: the factor derived from an element of the second half
//   F::OfRow(args, row)   the function for the elements of a row
//   f.IsIdentity()        whether the function changes no element, so that a row that is updated in
//                         place needs no write
//   f(x)                  the result in float32

#ifndef REPRISE_RUNNER_OPS_ELEMENTWISE_ARGS_H_
#define REPRISE_RUNNER_OPS_ELEMENTWISE_ARGS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/base/host_device.h"
#include "reprise/runner/ops/op_options.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

enum class ElementwiseFunction : int8_t {
  kSiluGate,
  kGeluTanhGate,
  kClampedSwigluGate,
  kGelu,
  kGeluTanh,
  kSoftcap,
  kTemperature,
};

// out = f(x), or out = round(f(x)) * Factor(up) for gated functions. Strides are in elements.
struct ElementwiseArgs {
  ElementwiseFunction function = ElementwiseFunction::kGelu;
  DType dtype = DType::kFloat32;  // x and out: float32, float16 or bfloat16
  const void* x = nullptr;        // [num_rows, num_heads, size], or [num_rows, 2 * size] if gated
  int64_t x_stride = 0;           // between rows
  void* out = nullptr;            // [num_rows, num_heads, size]; may be x if not gated
  int64_t out_stride = 0;         // between rows
  int64_t head_stride = 0;        // x and out
  int num_rows = 0;
  int num_heads = 1;  // kTemperature; otherwise 1
  int size = 0;
  float cap = 0;                       // kSoftcap; > 0
  const int32_t* positions = nullptr;  // kTemperature: [num_rows]
  QueryTemperature temperature = {};   // kTemperature
};

// The tanh approximation of GELU.
REPRISE_HOST_DEVICE inline float TanhGelu(float x) {
  constexpr float kSqrtTwoOverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + tanhf(kSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
}

struct SiluGate {
  static constexpr bool kIsGated = true;
  static constexpr bool kHasHeads = false;
  REPRISE_HOST_DEVICE static float Factor(float up) { return up; }
  REPRISE_HOST_DEVICE static SiluGate OfRow(const ElementwiseArgs&, int64_t) { return {}; }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  REPRISE_HOST_DEVICE float operator()(float x) const { return x / (1.0f + expf(-x)); }
};

struct GeluTanhGate {
  static constexpr bool kIsGated = true;
  static constexpr bool kHasHeads = false;
  REPRISE_HOST_DEVICE static float Factor(float up) { return up; }
  REPRISE_HOST_DEVICE static GeluTanhGate OfRow(const ElementwiseArgs&, int64_t) { return {}; }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  REPRISE_HOST_DEVICE float operator()(float x) const { return TanhGelu(x); }
};

// Both clamps preserve NaN, so that NaN in a row remains visible.
struct ClampedSwigluGate {
  static constexpr bool kIsGated = true;
  static constexpr bool kHasHeads = false;
  static constexpr float kLimit = 7.0f;
  static constexpr float kAlpha = 1.702f;
  REPRISE_HOST_DEVICE static float Factor(float up) {
    return (up > kLimit ? kLimit : up < -kLimit ? -kLimit : up) + 1.0f;
  }
  REPRISE_HOST_DEVICE static ClampedSwigluGate OfRow(const ElementwiseArgs&, int64_t) { return {}; }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  REPRISE_HOST_DEVICE float operator()(float x) const {
    const float gate = x > kLimit ? kLimit : x;
    return gate / (1.0f + expf(-kAlpha * gate));
  }
};

struct TanhGeluInPlace {
  static constexpr bool kIsGated = false;
  static constexpr bool kHasHeads = false;
  REPRISE_HOST_DEVICE static TanhGeluInPlace OfRow(const ElementwiseArgs&, int64_t) { return {}; }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  REPRISE_HOST_DEVICE float operator()(float x) const { return TanhGelu(x); }
};

struct ErfGelu {
  static constexpr bool kIsGated = false;
  static constexpr bool kHasHeads = false;
  REPRISE_HOST_DEVICE static ErfGelu OfRow(const ElementwiseArgs&, int64_t) { return {}; }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  // For negative x, the definition with erf subtracts nearly equal numbers; erfc avoids the
  // cancellation.
  REPRISE_HOST_DEVICE float operator()(float x) const {
    constexpr float kSqrtHalf = 0.70710678118654752f;
    return 0.5f * x * erfcf(-x * kSqrtHalf);
  }
};

struct TanhSoftcap {
  static constexpr bool kIsGated = false;
  static constexpr bool kHasHeads = false;
  float cap;

  REPRISE_HOST_DEVICE static TanhSoftcap OfRow(const ElementwiseArgs& args, int64_t) {
    return {args.cap};
  }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return false; }
  REPRISE_HOST_DEVICE float operator()(float x) const { return cap * tanhf(x / cap); }
};

struct PositionTemperature {
  static constexpr bool kIsGated = false;
  static constexpr bool kHasHeads = true;
  float factor;

  // In float32, with the same sequence of operations as Hugging Face's Llama 4 and Ministral 3.
  REPRISE_HOST_DEVICE static PositionTemperature OfRow(const ElementwiseArgs& args, int64_t row) {
    const int32_t position = args.positions[row] > 0 ? args.positions[row] : 0;
    const float count = floorf(
        (static_cast<float>(position) + static_cast<float>(args.temperature.position_offset)) /
        args.temperature.floor_scale);
    return {log1pf(count) * args.temperature.attn_scale + 1.0f};
  }
  REPRISE_HOST_DEVICE bool IsIdentity() const { return factor == 1.0f; }
  REPRISE_HOST_DEVICE float operator()(float x) const { return x * factor; }
};

// Calls visit.operator()<F>(), where F is the struct of `function`.
template <typename Visitor>
auto VisitElementwiseFunction(ElementwiseFunction function, Visitor&& visit) {
  switch (function) {
    case ElementwiseFunction::kSiluGate:
      return visit.template operator()<SiluGate>();
    case ElementwiseFunction::kGeluTanhGate:
      return visit.template operator()<GeluTanhGate>();
    case ElementwiseFunction::kClampedSwigluGate:
      return visit.template operator()<ClampedSwigluGate>();
    case ElementwiseFunction::kGeluTanh:
      return visit.template operator()<TanhGeluInPlace>();
    case ElementwiseFunction::kSoftcap:
      return visit.template operator()<TanhSoftcap>();
    case ElementwiseFunction::kTemperature:
      return visit.template operator()<PositionTemperature>();
    case ElementwiseFunction::kGelu:
      break;
  }
  return visit.template operator()<ErfGelu>();
}

// Returns the function that GateMul() applies for this activation.
constexpr ElementwiseFunction GateFunctionOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return ElementwiseFunction::kSiluGate;
    case Activation::kGeluTanh:
      return ElementwiseFunction::kGeluTanhGate;
    case Activation::kClampedSwiglu:
      break;
  }
  return ElementwiseFunction::kClampedSwigluGate;
}

// Returns the name of the public function that uses `function`, for messages.
constexpr const char* NameOf(ElementwiseFunction function) {
  switch (function) {
    case ElementwiseFunction::kSiluGate:
    case ElementwiseFunction::kGeluTanhGate:
    case ElementwiseFunction::kClampedSwigluGate:
      return "GateMul";
    case ElementwiseFunction::kGelu:
    case ElementwiseFunction::kGeluTanh:
      return "Gelu";
    case ElementwiseFunction::kSoftcap:
      return "Softcap";
    case ElementwiseFunction::kTemperature:
      return "TemperQueries";
  }
  return "unknown";
}

// Enqueues the kernel. REQUIRES: the arguments pass the checks of elementwise.h. Errors: those of
// CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchElementwise(const ElementwiseArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ELEMENTWISE_ARGS_H_
