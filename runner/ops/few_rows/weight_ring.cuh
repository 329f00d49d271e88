// What the products of few rows share that read a weight row by row (runner/ops/skinny_linear.cu,
// runner/ops/fp8/fp8_linear.cu): a ring in shared memory through which the warps of a CTA copy the
// rows of their units, and the product of a unit with 8 rows of x.
//
//   unit    16 rows of the weight.
//   strip   kStrip units that a CTA takes at once.
//   step    a line of 128 bytes of each row of a strip for each of the 8 warps: 1024 bytes of a
//           row.
//   ring    kStages steps. Each warp copies what it alone reads, by cp.async, kStages - 1 steps
//           ahead: no barrier but __syncwarp().
//
// How a warp copies and reads a unit (after which the hardware's fragments fit without ldmatrix):
//   copies  4 rows x 128 bytes an instruction: lane l has 16 bytes, chunk l % 8 of row l / 8. Full
//           lines are a tenth quicker than 8 rows x 64 bytes.
//   reads   lane l = 4 g + t has pieces of row g and of row g + 8, and lanes of a row neighbouring
//           ones: of 16 bytes, chunks t and 4 + t, or of 8, from 32 i + 8 t on.
//   banks   the lanes that the hardware serves at once use all banks once: 8 lanes of 16 bytes, of
//           two rows, as odd rows have their halves of a line swapped; 16 lanes of 8 bytes, of four
//           rows, as row r has its quarter i of a line at i ^ r % 4.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_WEIGHT_RING_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_WEIGHT_RING_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace reprise {

inline constexpr int kRingWarps = 8;
inline constexpr int kRingUnitRows = 16;
inline constexpr int kRingLine = 128;                     // bytes of a row in a warp's step
inline constexpr int kRingStep = kRingWarps * kRingLine;  // bytes of a row in a step
inline constexpr int kRingUnitChunks = kRingUnitRows * kRingLine / 16;  // in a warp's step

template <int kStrip>
struct RingShape {
  // About 100 KB in flight a CTA; more is not quicker.
  static constexpr int kStages = kStrip == 1 ? 8 : kStrip == 2 ? 4 : 3;
  static constexpr int kStageChunks = kRingWarps * kStrip * kRingUnitChunks;
  static constexpr int kBytes = kStages * kStageChunks * 16;
};

template <int kPending>
__device__ __forceinline__ void AwaitRingCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// From L2: the kernel before this one has written it, and an SM's L1 knows nothing of that.
__device__ __forceinline__ uint4 LoadFromL2(const void* pointer) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer)
               : "memory");
  return v;
}

// sum += A B by mma m16n8k16, in registers as the hardware has them: 16 rows of the weight are A, 8
// rows of x are B. T: __half or __nv_bfloat16.
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

// A weight of rows of num_steps * kRingStep bytes, row_bytes apart, at multiples of 16 bytes.
struct RingWeight {
  const char* data;
  int64_t row_bytes;
  int num_steps;
  // Rows from the first 8 of a unit to its others. 8: units are neighbouring rows. Else those of the
  // first halves of units are neighbours, and so are those of the second halves.
  int pair_distance = 8;
};

// What a lane reads at once.
enum class RingPiece : int8_t { kBytes16, kBytes8 };

// The weights of a CTA's units, strip by strip, as a warp copies them into its part of the ring:
// [kStages, kRingWarps, kStrip, kRingUnitChunks].
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
    // Weights are read once a step of the model: they are the first to leave the L2 cache.
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = lane / 8, chunk = lane % 8;
    from_ = weight.data + row * row_bytes_ + warp * kRingLine + chunk * 16;
    const int moved = kPiece == RingPiece::kBytes16 ? row % 2 * 4 : row % 4 * 2;
    to_ = static_cast<uint32_t>(__cvta_generic_to_shared(ring + warp * kStrip * kRingUnitChunks +
                                                         row * 8 + (chunk ^ moved)));
  }

  // Copies the next step, if there is one. Called once a step, by all lanes.
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
    asm volatile("cp.async.commit_group;" ::: "memory");  // an empty group keeps the count
  }

  // What this lane reads of the first unit in the first slot: its chunk of row g of the first half
  // of the line. Row g + 8 is 64 chunks on, the chunk of the other half OtherHalf(), the next unit
  // kRingUnitChunks, the next slot kStageChunks.
  __device__ static const uint4* OfLane(const uint4* ring) {
    static_assert(kPiece == RingPiece::kBytes16);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    return ring + warp * kStrip * kRingUnitChunks + g * 8 + (t ^ (g % 2 * 4));
  }
  // With pieces of 8 bytes: the chunk where row g of the first unit in the first slot begins, and
  // the bytes from there to this lane's piece of a quarter of the line. Row g + 8 is 64 chunks on.
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
