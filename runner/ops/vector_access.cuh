// Loads and stores of rows of float32, float16 and bfloat16 in vectors of up to 16 bytes, for
// kernels that compute in float32.
//
//   Vector<T, 8> v = LoadVector<T, 8>(row + 8 * i);
//   v.value[j] = FromFloat<T>(2 * ToFloat(v.value[j]));
//   StoreVector(row + 8 * i, v);

#ifndef REPRISE_RUNNER_OPS_VECTOR_ACCESS_CUH_
#define REPRISE_RUNNER_OPS_VECTOR_ACCESS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "reprise/base/dtype.h"
#include "reprise/base/to_float.cuh"

namespace reprise {

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Returns `value` rounded to T.
template <typename T>
__device__ float RoundTo(float value) {
  return ToFloat(FromFloat<T>(value));
}

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T value[kSize];
};

template <typename T, int kSize>
__device__ Vector<T, kSize> LoadVector(const T* pointer) {
  return *reinterpret_cast<const Vector<T, kSize>*>(pointer);
}

template <typename T, int kSize>
__device__ void StoreVector(T* pointer, const Vector<T, kSize>& vector) {
  *reinterpret_cast<Vector<T, kSize>*>(pointer) = vector;
}

// Number of elements of T in 16 bytes.
template <typename T>
inline constexpr int kFullVector = 16 / static_cast<int>(sizeof(T));

// Whether rows of T that begin at `pointer` + multiples of `stride` elements can be read in vectors
// of 16 bytes.
template <typename T>
bool IsAlignedForVectors(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % kFullVector<T> == 0;
}

// Calls `visit` with a value of the device type of `dtype`: float, __half or __nv_bfloat16. Returns
// cudaErrorInvalidValue for other dtypes.
template <typename Visitor>
cudaError_t VisitDeviceType(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat16:
      return visit(__half{});
    case DType::kBFloat16:
      return visit(__nv_bfloat16{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_VECTOR_ACCESS_CUH_
