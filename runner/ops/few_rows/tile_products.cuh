// Hopper's warpgroup MMA: four warps compute D[64 x kColumns] += A[64 x 16] B[16 x kColumns] of
// float16 or bfloat16 with float32 sums in registers. Requires compute capability 9.0 exactly
// ("90a"). See PTX ISA, "wgmma.mma_async".
//
// B is a box in shared memory, and so is A unless its fragments are in registers. A box has rows of
// 128 bytes (64 elements) and is aligned to 1024 bytes; chunk c of 16 bytes of row r is stored at
// chunk c ^ r % 8. Warp w of the four has rows 16 w .. 16 w + 15 of A and D. Its lane l has
// d[n][0], d[n][1] of row l / 4, columns 8 n + l % 4 * 2 + {0, 1}, and d[n][2], d[n][3] of row
// l / 4 + 8. For A in registers, the lane holds, as pairs, elements l % 4 * 2 + {0, 1} of rows
// l / 4 and l / 4 + 8, and then the elements 8 further along these rows.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PRODUCTS_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PRODUCTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#define REPRISE_D_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REPRISE_D_16 REPRISE_D_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REPRISE_D_20 REPRISE_D_16 ", %16, %17, %18, %19"
#define REPRISE_D_24 REPRISE_D_20 ", %20, %21, %22, %23"
#define REPRISE_D_32 REPRISE_D_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REPRISE_D_48                                                              \
  REPRISE_D_32                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47"
#define REPRISE_D_64                                                              \
  REPRISE_D_48                                                                    \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
  "%63"
#define REPRISE_SUMS_4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define REPRISE_SUMS_8(d, n) REPRISE_SUMS_4(d, n), REPRISE_SUMS_4(d, n + 1)
#define REPRISE_SUMS_16(d, n) REPRISE_SUMS_8(d, n), REPRISE_SUMS_8(d, n + 2)
#define REPRISE_SUMS_20(d, n) REPRISE_SUMS_16(d, n), REPRISE_SUMS_4(d, n + 4)
#define REPRISE_SUMS_24(d, n) REPRISE_SUMS_16(d, n), REPRISE_SUMS_8(d, n + 4)
#define REPRISE_SUMS_32(d, n) REPRISE_SUMS_16(d, n), REPRISE_SUMS_16(d, n + 4)
#define REPRISE_SUMS_48(d, n) REPRISE_SUMS_32(d, n), REPRISE_SUMS_16(d, n + 8)
#define REPRISE_SUMS_64(d, n) REPRISE_SUMS_32(d, n), REPRISE_SUMS_32(d, n + 8)

// `inputs`: A and B, whose operands follow the operands of the sums. `orders`: "0" for each operand
// in shared memory, which means that its rows are along the summed dimension.
#define REPRISE_TILE_PRODUCT(type, columns, registers, operands, orders, sums, inputs)             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" registers \
               "}, " operands ", 1, 1, 1, " orders ";\n"                                           \
               : sums                                                                              \
               : inputs)
#define REPRISE_TILE_PRODUCT_OF(T, columns, registers, operands, orders, sums, inputs)    \
  if constexpr (std::is_same_v<T, __half>) {                                              \
    REPRISE_TILE_PRODUCT("f16", columns, registers, operands, orders, REPRISE_PACK sums,  \
                         REPRISE_PACK inputs);                                            \
  } else {                                                                                \
    REPRISE_TILE_PRODUCT("bf16", columns, registers, operands, orders, REPRISE_PACK sums, \
                         REPRISE_PACK inputs);                                            \
  }
#define REPRISE_PACK(...) __VA_ARGS__

// Both operands are in shared memory.
#define REPRISE_BOX_PRODUCT(T, columns, registers, operands, sums) \
  REPRISE_TILE_PRODUCT_OF(T, columns, registers, operands, "0, 0", sums, ("l"(a), "l"(b)))
// A is in registers.
#define REPRISE_FRAGMENT_PRODUCT(T, columns, registers, operands, sums) \
  REPRISE_TILE_PRODUCT_OF(T, columns, registers, operands, "0", sums,   \
                          ("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)))

namespace reprise {

template <int kColumns>
using TileSums = float[kColumns / 8][4];

// A lane's elements of A.
using TileFragment = uint32_t[4];

// Returns the wgmma descriptor for 64 rows of the weight's box, or for the kColumns rows of x's
// box. `address` in shared memory is a multiple of 1024 bytes, plus 32 bytes for each 16 elements
// along the rows.
__device__ __forceinline__ uint64_t BoxOf(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void BeginTileProducts() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

// Waits until the sums contain all MMAs issued so far. Their operands may then be overwritten.
__device__ __forceinline__ void EndTileProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

template <typename T, int kColumns>
inline constexpr bool kIsTileProduct =
    (std::is_same_v<T, __half> ||
     std::is_same_v<T, __nv_bfloat16>)&&(kColumns == 16 || kColumns == 32 || kColumns == 40 ||
                                         kColumns == 48 || kColumns == 64 || kColumns == 96 ||
                                         kColumns == 128);

// d += A B for 16 elements along the rows of both. REQUIRES: called between BeginTileProducts() and
// EndTileProducts().
template <typename T, int kColumns>
__device__ __forceinline__ void TileProduct(TileSums<kColumns>& d, uint64_t a, uint64_t b) {
  static_assert(kIsTileProduct<T, kColumns>);
  if constexpr (kColumns == 16) {
    REPRISE_BOX_PRODUCT(T, "16", REPRISE_D_8, "%8, %9", (REPRISE_SUMS_8(d, 0)))
  } else if constexpr (kColumns == 32) {
    REPRISE_BOX_PRODUCT(T, "32", REPRISE_D_16, "%16, %17", (REPRISE_SUMS_16(d, 0)))
  } else if constexpr (kColumns == 40) {
    REPRISE_BOX_PRODUCT(T, "40", REPRISE_D_20, "%20, %21", (REPRISE_SUMS_20(d, 0)))
  } else if constexpr (kColumns == 48) {
    REPRISE_BOX_PRODUCT(T, "48", REPRISE_D_24, "%24, %25", (REPRISE_SUMS_24(d, 0)))
  } else if constexpr (kColumns == 64) {
    REPRISE_BOX_PRODUCT(T, "64", REPRISE_D_32, "%32, %33", (REPRISE_SUMS_32(d, 0)))
  } else if constexpr (kColumns == 96) {
    REPRISE_BOX_PRODUCT(T, "96", REPRISE_D_48, "%48, %49", (REPRISE_SUMS_48(d, 0)))
  } else {
    REPRISE_BOX_PRODUCT(T, "128", REPRISE_D_64, "%64, %65", (REPRISE_SUMS_64(d, 0)))
  }
}

// TileProduct() for up to 64 columns and A in registers, which must not change before
// EndTileProducts().
template <typename T, int kColumns>
__device__ __forceinline__ void FragmentProduct(TileSums<kColumns>& d, const TileFragment& a,
                                                uint64_t b) {
  static_assert(kIsTileProduct<T, kColumns> && kColumns <= 64);
  if constexpr (kColumns == 16) {
    REPRISE_FRAGMENT_PRODUCT(T, "16", REPRISE_D_8, "{%8, %9, %10, %11}, %12",
                             (REPRISE_SUMS_8(d, 0)))
  } else if constexpr (kColumns == 32) {
    REPRISE_FRAGMENT_PRODUCT(T, "32", REPRISE_D_16, "{%16, %17, %18, %19}, %20",
                             (REPRISE_SUMS_16(d, 0)))
  } else if constexpr (kColumns == 40) {
    REPRISE_FRAGMENT_PRODUCT(T, "40", REPRISE_D_20, "{%20, %21, %22, %23}, %24",
                             (REPRISE_SUMS_20(d, 0)))
  } else if constexpr (kColumns == 48) {
    REPRISE_FRAGMENT_PRODUCT(T, "48", REPRISE_D_24, "{%24, %25, %26, %27}, %28",
                             (REPRISE_SUMS_24(d, 0)))
  } else {
    REPRISE_FRAGMENT_PRODUCT(T, "64", REPRISE_D_32, "{%32, %33, %34, %35}, %36",
                             (REPRISE_SUMS_32(d, 0)))
  }
}

}  // namespace reprise

#undef REPRISE_FRAGMENT_PRODUCT
#undef REPRISE_BOX_PRODUCT
#undef REPRISE_PACK
#undef REPRISE_TILE_PRODUCT_OF
#undef REPRISE_TILE_PRODUCT
#undef REPRISE_SUMS_64
#undef REPRISE_SUMS_48
#undef REPRISE_SUMS_32
#undef REPRISE_SUMS_24
#undef REPRISE_SUMS_20
#undef REPRISE_SUMS_16
#undef REPRISE_SUMS_8
#undef REPRISE_SUMS_4
#undef REPRISE_D_64
#undef REPRISE_D_48
#undef REPRISE_D_32
#undef REPRISE_D_24
#undef REPRISE_D_20
#undef REPRISE_D_16
#undef REPRISE_D_8

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PRODUCTS_CUH_
