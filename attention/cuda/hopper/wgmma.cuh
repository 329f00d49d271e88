// The wgmma instruction, Hopper's MMA by the four warps of a warpgroup: D[64 x kColumns] += A[64 x
// 16] B[16 x kColumns], or D = A B, in float16 or bfloat16 with float32 sums in registers.
// warpgroup_products.cuh describes the layout of D, the descriptors of tiles and the required
// waits. Compute capability 9.0 exactly ("90a").
//
//   WarpgroupProduct<__half, 64>::Rows(d, q.At(0), k.At(0), true);   // S = Q K^T
//   WarpgroupProduct<__half, 128>::Columns(d, p, v.At(0));           // O += P V
//
// The instruction lists every register of D, and the types are part of its name. The macros contain
// each list once. (PTX ISA, "wgmma.mma_async".)

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WGMMA_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Lists of the operands %0 to %31, %47, %63 and %127.
#define REPRISE_FIRST_32                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REPRISE_FIRST_48 \
  REPRISE_FIRST_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REPRISE_FIRST_64                                                                         \
  REPRISE_FIRST_32                                                                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REPRISE_FIRST_128                                                                        \
  REPRISE_FIRST_64                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "   \
  "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "   \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The registers of D that match these operands.
#define REPRISE_TILE(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define REPRISE_FOUR_TILES(d, n) \
  REPRISE_TILE(d, n), REPRISE_TILE(d, n + 1), REPRISE_TILE(d, n + 2), REPRISE_TILE(d, n + 3)
#define REPRISE_TILES(d, n) REPRISE_FOUR_TILES(d, n), REPRISE_FOUR_TILES(d, n + 4)

// `operands`: the operands of the instruction in PTX syntax, followed by the constraints of asm().
#define REPRISE_WGMMA_OF(type, columns, operands, ...)                                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " operands \
               ";\n" __VA_ARGS__)
#define REPRISE_WGMMA(T, columns, operands, ...)              \
  if constexpr (std::is_same_v<T, __half>) {                  \
    REPRISE_WGMMA_OF("f16", columns, operands, __VA_ARGS__);  \
  } else {                                                    \
    REPRISE_WGMMA_OF("bf16", columns, operands, __VA_ARGS__); \
  }

// REPRISE_WGMMA(), but sets D instead of adding if operand `is_first` is 1 (predicate "adds").
#define REPRISE_WGMMA_OR_SET_OF(type, is_first, columns, operands, ...)                          \
  asm volatile("{\n.reg .pred adds;\nsetp.eq.b32 adds, " is_first                                \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " operands \
               ";\n}\n" __VA_ARGS__)
#define REPRISE_WGMMA_OR_SET(T, is_first, columns, operands, ...)              \
  if constexpr (std::is_same_v<T, __half>) {                                   \
    REPRISE_WGMMA_OR_SET_OF("f16", is_first, columns, operands, __VA_ARGS__);  \
  } else {                                                                     \
    REPRISE_WGMMA_OR_SET_OF("bf16", is_first, columns, operands, __VA_ARGS__); \
  }

namespace reprise {

template <typename T, int kColumns>
struct WarpgroupProduct {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  static_assert(kColumns == 64 || kColumns == 96 || kColumns == 128 || kColumns == 256);

  using Sums = float[kColumns / 8][4];

  // d = A B if `is_first`, otherwise d += A B. Both operands are ProductTile::Rows().
  static __device__ __forceinline__ void Rows(Sums& d, uint64_t a, uint64_t b, bool is_first) {
    if constexpr (kColumns == 64) {
      REPRISE_WGMMA_OR_SET(T, "%34", "64", "{" REPRISE_FIRST_32 "}, %32, %33, adds, 1, 1, 0, 0",
                           : REPRISE_TILES(d, 0)
                           : "l"(a), "l"(b), "r"(static_cast<int>(is_first)))
    } else {
      static_assert(kColumns == 128);
      REPRISE_WGMMA_OR_SET(T, "%66", "128", "{" REPRISE_FIRST_64 "}, %64, %65, adds, 1, 1, 0, 0",
                           : REPRISE_TILES(d, 0), REPRISE_TILES(d, 8)
                           : "l"(a), "l"(b), "r"(static_cast<int>(is_first)))
    }
  }

  // Rows() with A in registers, in the lane layout of mma.m16n8k16.
  static __device__ __forceinline__ void Rows(Sums& d, const uint32_t (&a)[4], uint64_t b,
                                              bool is_first) {
    static_assert(kColumns == 64);
    REPRISE_WGMMA_OR_SET(
        T, "%37", "64", "{" REPRISE_FIRST_32 "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 0",
        : REPRISE_TILES(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(is_first)))
  }

  // d += A B. B is ProductTile::Columns(), A is ProductTile::Rows().
  static __device__ __forceinline__ void Columns(Sums& d, uint64_t a, uint64_t b) {
    static_assert(kColumns == 128);
    REPRISE_WGMMA(T, "128", "{" REPRISE_FIRST_64 "}, %64, %65, 1, 1, 1, 0, 1",
                  : REPRISE_TILES(d, 0), REPRISE_TILES(d, 8)
                  : "l"(a), "l"(b))
  }

  // Columns() with A in registers.
  static __device__ __forceinline__ void Columns(Sums& d, const uint32_t (&a)[4], uint64_t b) {
    if constexpr (kColumns == 64) {
      REPRISE_WGMMA(T, "64", "{" REPRISE_FIRST_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1",
                    : REPRISE_TILES(d, 0)
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    } else if constexpr (kColumns == 96) {
      REPRISE_WGMMA(T, "96", "{" REPRISE_FIRST_48 "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 1",
                    : REPRISE_TILES(d, 0), REPRISE_FOUR_TILES(d, 8)
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    } else if constexpr (kColumns == 128) {
      REPRISE_WGMMA(T, "128", "{" REPRISE_FIRST_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1",
                    : REPRISE_TILES(d, 0), REPRISE_TILES(d, 8)
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    } else {
      REPRISE_WGMMA(T, "256", "{" REPRISE_FIRST_128 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1",
                    : REPRISE_TILES(d, 0), REPRISE_TILES(d, 8), REPRISE_TILES(d, 16),
                      REPRISE_TILES(d, 24)
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    }
  }
};

}  // namespace reprise

#undef REPRISE_FIRST_32
#undef REPRISE_FIRST_48
#undef REPRISE_FIRST_64
#undef REPRISE_FIRST_128
#undef REPRISE_TILE
#undef REPRISE_FOUR_TILES
#undef REPRISE_TILES
#undef REPRISE_WGMMA_OF
#undef REPRISE_WGMMA
#undef REPRISE_WGMMA_OR_SET_OF
#undef REPRISE_WGMMA_OR_SET

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WGMMA_CUH_
