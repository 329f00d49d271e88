// Converts an 8-bit weight to the dtype of a GEMM, 16 values per thread.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_values.cuh"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 16;  // values per thread; all in one group
static_assert(kFp8Group % kPiece == 0);

// kAligned: rows of values and of `out` are aligned to 16 bytes, and in_features is a multiple of
// kPiece.
template <typename Out, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    DequantiseKernel(const __grid_constant__ Fp8Weight weight, int first_row, int64_t num_pieces,
                     int pieces_of_row, Out* out) {
  const int64_t piece = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (piece >= num_pieces) return;
  const int64_t row = piece / pieces_of_row;
  const int begin = static_cast<int>(piece % pieces_of_row) * kPiece;
  const uint8_t* const from = weight.values + (first_row + row) * weight.stride + begin;
  const int group = weight.num_groups > 1 ? begin / kFp8Group : 0;
  const float scale = weight.scales[(first_row + row) * weight.scales_stride + group];
  const int count = min(kPiece, weight.in_features - begin);
  Vector<uint32_t, 4> words = {};
  if constexpr (kAligned) {
    words = LoadVector<uint32_t, 4>(reinterpret_cast<const uint32_t*>(from));
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (i < count) words.value[i / 4] |= static_cast<uint32_t>(from[i]) << 8 * (i % 4);
    }
  }
  Vector<Out, kFullVector<Out>> results[kPiece / kFullVector<Out>];
  const auto set = [&](int i, float value) {
    results[i / kFullVector<Out>].value[i % kFullVector<Out>] = FromFloat<Out>(value * scale);
  };
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t even = EvenFp8Values<__half>(words.value[w]);
    const uint32_t odd = OddFp8Values<__half>(words.value[w]);
    const float2 evens = __half22float2(*reinterpret_cast<const __half2*>(&even));
    const float2 odds = __half22float2(*reinterpret_cast<const __half2*>(&odd));
    set(w * 4, evens.x);
    set(w * 4 + 1, odds.x);
    set(w * 4 + 2, evens.y);
    set(w * 4 + 3, odds.y);
  }
  Out* const to = out + row * weight.in_features + begin;
  if constexpr (kAligned) {
#pragma unroll
    for (int i = 0; i < kPiece / kFullVector<Out>; ++i) {
      StoreVector(to + i * kFullVector<Out>, results[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (i < count) to[i] = results[i / kFullVector<Out>].value[i % kFullVector<Out>];
    }
  }
}

template <typename Out>
absl::Status Launch(const Fp8Weight& weight, int first_row, int num_rows, void* out,
                    cudaStream_t stream) {
  const int pieces_of_row = (weight.in_features + kPiece - 1) / kPiece;
  const int64_t num_pieces = int64_t{num_rows} * pieces_of_row;
  const unsigned grid = static_cast<unsigned>((num_pieces + kThreads - 1) / kThreads);
  const bool is_aligned = reinterpret_cast<uintptr_t>(weight.values) % 16 == 0 &&
                          weight.stride % 16 == 0 && weight.in_features % kPiece == 0 &&
                          reinterpret_cast<uintptr_t>(out) % 16 == 0;
  if (is_aligned) {
    DequantiseKernel<Out, true><<<grid, kThreads, 0, stream>>>(
        weight, first_row, num_pieces, pieces_of_row, static_cast<Out*>(out));
  } else {
    DequantiseKernel<Out, false><<<grid, kThreads, 0, stream>>>(
        weight, first_row, num_pieces, pieces_of_row, static_cast<Out*>(out));
  }
  return CudaStatus(cudaGetLastError(), "Dequantise");
}

}  // namespace

absl::Status LaunchDequantise(const Fp8Weight& weight, int first_row, int num_rows, DType dtype,
                              void* out, CUstream_st* stream) {
  if (first_row < 0 || num_rows < 1 || num_rows > weight.out_features - first_row) {
    return absl::InvalidArgumentError(absl::StrCat("num_rows: expected rows of ",
                                                   weight.out_features, ", got ", num_rows,
                                                   " from ", first_row));
  }
  const int num_groups = (weight.in_features + kFp8Group - 1) / kFp8Group;
  if (weight.in_features < 1 || (weight.num_groups != 1 && weight.num_groups != num_groups)) {
    return absl::InvalidArgumentError(absl::StrCat("num_groups: expected 1 or ", num_groups,
                                                   " for ", weight.in_features,
                                                   " in_features, got ", weight.num_groups));
  }
  switch (dtype) {
    case DType::kFloat32:
      return Launch<float>(weight, first_row, num_rows, out, stream);
    case DType::kFloat16:
      return Launch<__half>(weight, first_row, num_rows, out, stream);
    case DType::kBFloat16:
      return Launch<__nv_bfloat16>(weight, first_row, num_rows, out, stream);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype: expected float32, float16 or bfloat16, got ", std::string(DTypeName(dtype))));
  }
}

}  // namespace reprise
