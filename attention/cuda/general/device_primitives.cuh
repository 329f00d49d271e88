// Instructions that the attention kernels use: asynchronous copies, matrix loads, tensor core MMA.
// Compute capability 8.0 and up.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_DEVICE_PRIMITIVES_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_DEVICE_PRIMITIVES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace reprise {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to a SharedAddress(). If !is_there, fills them with zeros and does not read
// `source`. REQUIRES: `source` is aligned to 16 bytes in both cases.
__device__ __forceinline__ void CopyAsync16(uint32_t destination, const void* source,
                                            bool is_there) {
  asm volatile(
      "{\n"
      ".reg .pred absent;\n"
      "setp.eq.b32 absent, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, absent;\n"
      "}\n" ::"r"(destination),
      "l"(source), "r"(static_cast<int>(is_there))
      : "memory");
}

// Copies 4 bytes.
__device__ __forceinline__ void CopyAsync4(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(destination), "l"(source)
               : "memory");
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most the kPending newest cp.async groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Synchronises `num_threads` threads (whole warps) at named barrier `index` of the CTA.
// __syncthreads() uses barrier 0.
__device__ __forceinline__ void NamedBarrierSync(int index, int num_threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(index), "r"(num_threads) : "memory");
}

// Increments the counter, which wraps to 0 after `last`. Returns the previous value. Acquires and
// releases: if the CTA's threads write and then reach a barrier with this thread, these writes are
// visible to threads that acquire the new or a later value, and to threads that synchronise with
// them afterwards.
__device__ __forceinline__ uint32_t IncrementAcquireRelease(uint32_t* counter, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}

// Adds `value` and returns the previous value. Acquires and releases as IncrementAcquireRelease()
// does.
__device__ __forceinline__ uint32_t AddAcquireRelease(uint32_t* counter, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;\n"
               : "=r"(before)
               : "l"(counter), "r"(value)
               : "memory");
  return before;
}

// Loads the counter. Writes that threads released by additions to the counter are visible
// afterwards.
__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* counter) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Loads four 8 x 8 matrices of 16-bit elements. Lane l supplies the address of row l % 8 of matrix
// l / 8. Lane l receives the elements (l / 4, l % 4 * 2 + {0, 1}) of each matrix.
__device__ __forceinline__ void LoadMatrices(uint32_t (&matrix)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void LoadMatrices(uint32_t (&matrix)[4], const void* row) {
  LoadMatrices(matrix, SharedAddress(row));
}

// LoadMatrices(), transposed: lane l receives the elements (l % 4 * 2 + {0, 1}, l / 4).
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&matrix)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&matrix)[4], const void* row) {
  LoadMatricesTransposed(matrix, SharedAddress(row));
}

// c[16 x 8] += a[16 x 16] b[16 x 8]. Lane l holds c of rows l / 4 (c[0], c[1]) and l / 4 + 8 (c[2],
// c[3]), columns l % 4 * 2 + {0, 1}.
template <typename T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1);

template <>
__device__ __forceinline__ void MultiplyAdd<__half>(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void MultiplyAdd<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(__half value) { return __half2float(value); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Packs two values into a 32-bit register for an MMA, `low` into the low half.
template <typename T>
__device__ __forceinline__ uint32_t Pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t Pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t Pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Relative error below 1e-6, also near 0. tanhf() takes many more instructions.
__device__ __forceinline__ float Tanh(float x) {
  const float square = x * x;
  const float cubic = fmaf(square, fmaf(square, -17.0f / 315.0f, 2.0f / 15.0f), -1.0f / 3.0f);
  const float near_zero = x * fmaf(square, cubic, 1.0f);
  const float far = 1.0f - __fdividef(2.0f, 1.0f + exp2f(x * (2.0f * kLog2E)));
  return square < 0.0625f ? near_zero : far;
}

// The maximum over the four lanes that share a row of an MMA result.
__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(kFullWarp, value, 2));
}

__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(kFullWarp, value, 1);
  return value + __shfl_xor_sync(kFullWarp, value, 2);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_DEVICE_PRIMITIVES_CUH_
