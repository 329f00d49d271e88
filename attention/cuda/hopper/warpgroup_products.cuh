// Helpers for wgmma, Hopper's MMA by the four warps of a warpgroup (wgmma.cuh): D[64 x N] += A[64 x
// 16] B[16 x N], with float32 sums in registers. Compute capability 9.0 exactly ("90a").
//
// Each warp holds D as in mma.m16n8k16. Warp w of the four has rows 16 w .. 16 w + 15. Its lane l
// has d[n][0] and d[n][1] in row l / 4, columns 8 n + l % 4 * 2 + {0, 1}, and d[n][2] and d[n][3]
// in row l / 4 + 8.
//
// wgmma is asynchronous: the registers that it reads or writes must not be touched between
// WgmmaFence() and WgmmaWait() for its group. Tiles in shared memory are aligned to 1024 bytes, and
// their rows have 128 bytes (64 elements) per panel. The eight 16-byte chunks of a row are swizzled
// by the row index: chunk c of row r is at c ^ r % 8. (PTX ISA, "Matrix Descriptor", 128-byte
// swizzle.)

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_PRODUCTS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_PRODUCTS_CUH_

#include <cstdint>

namespace reprise {

// Raises the number of registers per thread of the warpgroup to kRegisters, a multiple of 8. Waits
// until other warpgroups have released enough registers (RegDealloc()).
template <int kRegisters>
__device__ __forceinline__ void RegAlloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void RegDealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Makes this thread's writes to shared memory visible to wgmma (the async proxy). Called after the
// writes, and before the thread signals them at a barrier.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most the kPending newest wgmma groups are in flight.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Forces the compiler to compute `values` before the wait for the wgmma groups that follows in the
// code. Otherwise the compiler would postpone the computation.
template <int kTiles>
__device__ __forceinline__ void ComputeHere(float (&values)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    asm volatile(""
                 : "+f"(values[n][0]), "+f"(values[n][1]), "+f"(values[n][2]), "+f"(values[n][3])
                 :
                 : "memory");
  }
}

// The matrix descriptor of a tile in shared memory.
class ProductTile {
 public:
  // An operand that is summed along its rows (K-major): 16 elements of each row, beginning at
  // `address`.
  static __device__ __forceinline__ ProductTile Rows(uint32_t address) {
    return ProductTile(address, 16);
  }
  // An operand that is summed over its rows (MN-major): 16 rows, beginning at `address`. Each
  // further block of 64 columns is `bytes_to_next` after the previous block.
  static __device__ __forceinline__ ProductTile Columns(uint32_t address, uint32_t bytes_to_next) {
    return ProductTile(address, bytes_to_next);
  }

  // The descriptor of the tile that is `bytes` after this tile, as a wgmma operand.
  __device__ __forceinline__ uint64_t At(uint32_t bytes) const {
    constexpr uint32_t kEightRows = 1024 >> 4;
    constexpr uint32_t kSwizzle128 = 1u << 30;
    return uint64_t{kEightRows | kSwizzle128} << 32 | (low_ + (bytes >> 4));
  }

 private:
  __device__ __forceinline__ ProductTile(uint32_t address, uint32_t bytes_to_next)
      : low_((address & 0x3ffff) >> 4 | bytes_to_next >> 4 << 16) {}

  uint32_t low_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_PRODUCTS_CUH_
