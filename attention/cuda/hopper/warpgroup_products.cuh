// Helpers for Hopper's matrix products by four warps together (wgmma.cuh): D[64 x N] += A[64 x 16]
// B[16 x N], with float32 sums in registers. Compute capability 9.0 exactly ("90a").
//
// Each warp holds D as in a mma.m16n8k16: warp w of the four has the rows 16 w .. 16 w + 15, and
// lane l of it has d[n][0], d[n][1] of row l / 4, columns 8 n + l % 4 * 2 + {0, 1}, and d[n][2],
// d[n][3] of row l / 4 + 8.
//
// Products are asynchronous: between Fence() and Wait<>() of their group, the registers that they
// read or write must not be touched. Tiles in shared memory are rows of 128 bytes (64 elements),
// aligned to 1024 bytes; a row's eight chunks of 16 bytes are permuted by the row's number: chunk c
// of row r is at c ^ r % 8. (PTX ISA, "Matrix Descriptor", 128-byte swizzle.)

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_PRODUCTS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_PRODUCTS_CUH_

#include <cstdint>

namespace reprise {

// Raises the number of registers of each thread of the warpgroup to kRegisters, a multiple of 8;
// other warpgroups have released them.
template <int kRegisters>
__device__ __forceinline__ void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void ReduceRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Makes this thread's writes of shared memory visible to products. Called after the write and
// before the thread signals it.
__device__ __forceinline__ void ShowToProducts() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ __forceinline__ void FenceProducts() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most kPending of the newest groups are in flight.
template <int kPending>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Forces values to be computed before the wait for the asynchronous products that follow in the
// code; the compiler would otherwise postpone them.
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

// Describes a tile in shared memory to the products.
class ProductTile {
 public:
  // A tile whose rows are summed along, 16 elements from `address` on.
  static __device__ __forceinline__ ProductTile Rows(uint32_t address) {
    return ProductTile(address, 16);
  }
  // A tile whose rows are summed over, 16 rows from `address` on. Columns 64 and up are
  // `bytes_to_next` after the first.
  static __device__ __forceinline__ ProductTile Columns(uint32_t address, uint32_t bytes_to_next) {
    return ProductTile(address, bytes_to_next);
  }

  // The tile that is `bytes` after this one, in the form that the instruction takes.
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
