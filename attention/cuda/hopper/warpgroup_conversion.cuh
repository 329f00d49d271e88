// Converts operands in shared memory, in place, if their type differs from the MMA type
// (KvLoading::kFp8):
// - fp8 keys, values and queries to float16, which holds every value of fp8;
// - bfloat16 queries to float16, scaled by a power of two per row as in LoadScaledQueries()
//   (query_loader.cuh).
//
// The warps that copied the data convert it after their copies have arrived (warpgroup_rows.cuh).
//
// Bound, for a KV tile of 128 keys and head_dim 128: 16,384 conversions of pairs (128 per thread),
// and 96 KB of shared memory reads and writes, within the 3,100 cycles of the tile's MMAs and
// softmax.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_CONVERSION_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_CONVERSION_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/fp8_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_rows.cuh"
#include "reprise/base/dtype.h"

namespace reprise {

__device__ __forceinline__ uint4 LoadShared16(uint32_t address) {
  uint4 chunk;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(address)
               : "memory");
  return chunk;
}

__device__ __forceinline__ void StoreShared16(uint32_t address, const uint4& chunk) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(chunk.x),
               "r"(chunk.y), "r"(chunk.z), "r"(chunk.w)
               : "memory");
}

template <DType kStored, typename Rows>
__device__ __forceinline__ void Fp8RowsToHalves(uint32_t tile, int thread) {
  const int row = Rows::Row(thread);
  const int chunk = Rows::Chunk(thread);
  uint32_t from = tile + Rows::ArrivalOf(row, chunk);
  uint32_t to = tile + Rows::PlaceOf(row, chunk);
  constexpr int kBatch = Rows::kPasses < 4 ? Rows::kPasses : 4;
  constexpr int kPassBytes = Rows::kRowsPerPass * 128;
#pragma unroll 1
  for (int pass = 0; pass < Rows::kPasses; pass += kBatch) {
    uint4 chunks[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) chunks[i] = LoadShared16(from + i * kPassBytes);
    __syncwarp();  // the rows have been read, and may be overwritten
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      uint4 low, high;
      Fp8ToHalves<kStored>(chunks[i].x, low.x, low.y);
      Fp8ToHalves<kStored>(chunks[i].y, low.z, low.w);
      Fp8ToHalves<kStored>(chunks[i].z, high.x, high.y);
      Fp8ToHalves<kStored>(chunks[i].w, high.z, high.w);
      StoreShared16(to + i * kPassBytes, low);
      StoreShared16((to ^ 16) + i * kPassBytes, high);
    }
    from += kBatch * kPassBytes;
    to += kBatch * kPassBytes;
  }
}

// Converts the thread's rows of fp8 to float16. `tile`: a SharedAddress(). `thread`: index in the
// warpgroup.
template <typename Rows>
__device__ __forceinline__ void Fp8RowsToHalves(DType dtype, uint32_t tile, int thread) {
  if (dtype == DType::kFp8E5M2) {
    Fp8RowsToHalves<DType::kFp8E5M2, Rows>(tile, thread);
  } else {
    Fp8RowsToHalves<DType::kFp8E4M3, Rows>(tile, thread);
  }
}

// Scales the thread's rows of bfloat16 and converts them to float16. Stores the inverse of each
// row's factor in row_scales.
template <typename Rows>
__device__ __forceinline__ void ScaleQueriesToHalves(uint32_t tile, int thread, float* row_scales) {
  constexpr int kChunks = Rows::kChunkPasses;
  const int first_row = Rows::Row(thread);
  const int chunk = Rows::Chunk(thread);
  const uint32_t place = tile + Rows::PlaceOf(first_row, chunk);
#pragma unroll(4 / kChunks)
  for (int pass = 0; pass < Rows::kPasses; ++pass) {
    const int row = first_row + pass * Rows::kRowsPerPass;
    const uint32_t address = place + pass * (Rows::kRowsPerPass * 128);
    uint32_t words[kChunks][4];
    // The largest magnitude of the row, computed from the bits.
    uint32_t pair = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 from = LoadShared16(address + c * Rows::kChunkPassBytes);
      words[c][0] = from.x;
      words[c][1] = from.y;
      words[c][2] = from.z;
      words[c][3] = from.w;
#pragma unroll
      for (uint32_t word : words[c]) pair = __vmaxu2(pair, word & 0x7fff7fffu);
    }
    uint32_t largest = max(pair & 0xffffu, pair >> 16);
#pragma unroll
    for (int distance = Rows::kLanes / 2; distance > 0; distance /= 2) {
      largest = max(largest, __shfl_xor_sync(kFullWarp, largest, distance));
    }
    // Builds the factors 2^(14 - e) and 2^(e - 14) from their bits, for a largest value in [2^e,
    // 2^(e + 1)).
    const uint32_t exponent = max(largest >> 7, 15u);
    const float factor = __uint_as_float((268 - exponent) << 23);
    if (chunk == 0) row_scales[row] = __uint_as_float((exponent - 14) << 23);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t halves[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        halves[i] = Pack<__half>(__uint_as_float(words[c][i] << 16) * factor,
                                 __uint_as_float(words[c][i] & 0xffff0000u) * factor);
      }
      StoreShared16(address + c * Rows::kChunkPassBytes,
                    {halves[0], halves[1], halves[2], halves[3]});
    }
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_CONVERSION_CUH_
