// Shared by the GEMM kernels for few rows that read a weight row by row
// (runner/ops/skinny_linear.cu, runner/ops/fp8/fp8_linear.cu): a ring in shared memory through
// which the warps of a CTA copy the rows of their units, and the MMA of a unit with 8 rows of x.
//
//   unit    16 rows of the weight.
//   strip   kStrip units that a CTA processes together.
//   step    a line of 128 bytes of each row of a strip, for each of the 8 warps: 1024 bytes per row
//   ring    kStages steps. Each warp copies only data that it reads itself, with cp.async,
//           kStages - 1 steps ahead. It needs no barrier but __syncwarp().
//
// How a warp copies and reads a unit, so that the hardware's fragments are available without
// ldmatrix:
//   copies  4 rows x 128 bytes per instruction: lane l copies 16 bytes, chunk l % 8 of row l / 8.
//           Full lines are 10 % faster than 8 rows x 64 bytes.
//   reads   Lane l = 4 g + t reads pieces of row g and of row g + 8; the lanes of a row read
//           neighbouring pieces. With 16-byte pieces: chunks t and 4 + t. With 8-byte pieces: the
//           bytes at 32 i + 8 t.
//   banks   The lanes that the hardware serves together use each bank once. With 16-byte pieces
//           these are 8 lanes of two rows; odd rows have the halves of a line swapped. With 8-byte
//           pieces these are 16 lanes of four rows; row r stores quarter i of a line at quarter
//           i ^ r % 4.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_WEIGHT_RING_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_WEIGHT_RING_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace reprise {

inline constexpr int kRingWarps = 8;
inline constexpr int kRingUnitRows = 16;
inline constexpr int kRingLine = 128;                     // bytes per row in a warp's step
inline constexpr int kRingStep = kRingWarps * kRingLine;  // bytes per row in a step
inline constexpr int kRingUnitChunks = kRingUnitRows * kRingLine / 16;  // in a warp's step

template <int kStrip>
struct RingShape {
  // About 100 KB in flight per CTA; more is not faster.
  static constexpr int kStages = kStrip == 1 ? 8 : kStrip == 2 ? 4 : 3;
  static constexpr int kStageChunks = kRingWarps * kStrip * kRingUnitChunks;
  static constexpr int kBytes = kStages * kStageChunks * 16;
};

template <int kPending>
__device__ __forceinline__ void AwaitRingCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads from L2, because the previous kernel has written the data and the SM's L1 may be stale.
__device__ __forceinline__ uint4 LoadFromL2(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer)
               : "memory");
  return v;
}

// sum += A B by mma m16n8k16, with fragments in the hardware's register layout: 16 rows of the
// weight are A, 8 rows of x are B. T: __half or __nv_bfloat16.
template <typename T>
__device__ __forceinline__ void UnitProduct(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// A weight with rows of num_steps * kRingStep bytes, row_bytes apart and aligned to 16 bytes.
struct RingWeight {
  const char* data;
  int64_t row_bytes;
  int num_steps;
  // Distance in rows between the first 8 rows of a unit and its other 8 rows. 8: a unit has 16
  // consecutive rows. Otherwise the first halves of consecutive units are consecutive, and so are
  // the second halves.
  int pair_distance = 8;
};

// The size of a lane's read.
enum class RingPiece : int8_t { kBytes16, kBytes8 };

// Copies a warp's part of the weights of the CTA's units, strip by strip, into the warp's part of
// the ring: [kStages, kRingWarps, kStrip, kRingUnitChunks].
template <int kStrip, RingPiece kPiece = RingPiece::kBytes16>
class WeightRing {
 public:
  __device__ WeightRing(const RingWeight& weight, uint4* ring, int first_unit, int end_unit)
      : row_bytes_(weight.row_bytes),
        unit_bytes_(weight.row_bytes * (weight.pair_distance == 8 ? kRingUnitRows : 8)),
        pair_bytes_(weight.row_bytes * (weight.pair_distance - 8)),
        end_unit_(end_unit),
        num_steps_(weight.num_steps),
        unit_(first_unit) {
    // Weights are read once per step of the model, so the L2 cache evicts them first.
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = lane / 8, chunk = lane % 8;
    from_ = weight.data + row * row_bytes_ + warp * kRingLine + chunk * 16;
    const int moved = kPiece == RingPiece::kBytes16 ? row % 2 * 4 : row % 4 * 2;
    to_ = static_cast<uint32_t>(__cvta_generic_to_shared(ring + warp * kStrip * kRingUnitChunks +
                                                         row * 8 + (chunk ^ moved)));
  }

  // Copies the next step, if there is one. Called once per step by all lanes.
  __device__ void CopyNext() {
    if (unit_ < end_unit_) {
      const char* from = from_ + unit_ * unit_bytes_ + step_ * kRingStep;
      const uint32_t to = to_ + slot_ * (RingShape<kStrip>::kStageChunks * 16);
#pragma unroll
      for (int u = 0; u < kStrip; ++u) {
        if (unit_ + u >= end_unit_) break;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          CopyChunk(to + (u * kRingUnitChunks + i * 32) * 16,
                    from + u * unit_bytes_ + i * 4 * row_bytes_ + (i < 2 ? 0 : pair_bytes_));
        }
      }
      if (++step_ == num_steps_) {
        step_ = 0;
        unit_ += kStrip;
      }
      if (++slot_ == RingShape<kStrip>::kStages) slot_ = 0;
    }
    // Commits a group even if it is empty, so that each call adds one group.
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Returns the address of this lane's chunk of row g, first half of the line, in the first unit of
  // the first slot. Row g + 8 is 64 chunks further, the other half OtherHalf() chunks, the next
  // unit kRingUnitChunks chunks, the next slot kStageChunks chunks.
  __device__ static const uint4* OfLane(const uint4* ring) {
    static_assert(kPiece == RingPiece::kBytes16);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    return ring + warp * kStrip * kRingUnitChunks + g * 8 + (t ^ (g % 2 * 4));
  }
  // For 8-byte pieces. RowOfLane() returns the first chunk of row g in the first unit of the first
  // slot. PieceOfQuarter() returns the byte offset of this lane's piece within the line, for a
  // quarter of the line. Row g + 8 is 64 chunks further.
  __device__ static const uint4* RowOfLane(const uint4* ring) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return ring + warp * kStrip * kRingUnitChunks + lane / 4 * 8;
  }
  __device__ static int PieceOfQuarter(int quarter) {
    static_assert(kPiece == RingPiece::kBytes8);
    const int lane = threadIdx.x % 32;
    return (quarter ^ lane / 4 % 4) * 32 + lane % 4 * 8;
  }

  __device__ static int OtherHalf() { return threadIdx.x % 32 / 4 % 2 == 0 ? 4 : -4; }

 private:
  __device__ void CopyChunk(uint32_t to, const void* from) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy_)
                 : "memory");
  }

  const char* from_;
  int64_t row_bytes_;
  int64_t unit_bytes_;
  int64_t pair_bytes_;
  uint32_t to_;
  int end_unit_;
  int num_steps_;
  int64_t unit_;
  int step_ = 0;
  int slot_ = 0;
  uint64_t policy_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_WEIGHT_RING_CUH_
