// The CUDA attention kernels as data. kAttentionKernels lists every kernel with its tile, its way
// of loading keys, and its shared memory. Plans of tile schedules, the dispatch and the
// instantiations of the kernels use this table.
//
// A tile is `rows` query rows (queries times the q heads of a KV head) that are processed against
// KV tiles of `keys` keys. In tier 1, its CTA has warps_m x warps_d x warps_n warps of 16 rows
// each. The warps_m x warps_d warps of a warp group share a KV tile, and the warps_n warp groups
// process alternate KV tiles. The warps_d warps with the same rows divide the dims of Q K^T and the
// columns of P V among them. With 16-bit MMA types:
//
//   decode:  1 x 1 x 4 warps, 16 keys per warp, or 32 for head_dim 64 or fp8: every warp loads
//            separate keys, and the loop has no CTA barrier. 1 x 1 x 2 warps for head dims to 256
//   verify:  2 x 1 x 2 warps, for 17 to 32 rows: verification of drafts (5 queries of 4 heads per
//            group are 20 rows), short last chunks of prompts, decodes with more than 16 heads per
//            group. A tile of 128 rows would be nearly empty, and its single CTA per SM cannot
//            read the cache at full speed; two CTAs can. A tile of 64 rows without wgmma would be
//            compute bound, and read half the bytes per second.
//   prefill: 8 x 1 x 1 warps, 48 or 64 keys per CTA, or twice that for fp8: each key is loaded
//            once for 128 rows. 4 x 1 x 1 warps for head dims to 256
//   MLA, and head dims to 512: 1 x 4 x 1 and 4 x 2 x 1 warps, because one warp cannot hold 512
//            columns of out
//
// No CUDA. Thread safety: const data.

#ifndef REPRISE_ATTENTION_CUDA_TILES_H_
#define REPRISE_ATTENTION_CUDA_TILES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "reprise/base/dtype.h"

namespace reprise {

// The source of V for a tile.
enum class ValueSource : int8_t {
  kOwn,      // loaded separately from K
  kKeyTile,  // the first columns of K (absorbed MLA)
};

// The way in which keys and values are loaded for the MMA.
enum class KvLoading : int8_t {
  // Unconverted. K, V and q have the MMA type, and heads of K and V are whole 16-byte chunks.
  kDirect,
  // Through a conversion. Serves any type whose values the MMA type holds exactly, any strides,
  // rotary embedding, separate rope parts, and new keys from tensors.
  kConverted,
  // As stored. K and V are fp8, and heads of K and V are whole 16-byte chunks. The MMA type is
  // float16, which holds every value of fp8. q is 16-bit or fp8; bfloat16 rows are scaled by a
  // power of two to fit.
  kFp8,
};

// The way in which a KvView can be read.
enum class KvAccess : int8_t {
  kChunks,    // heads are whole 16-byte chunks, aligned to 16 bytes
  kElements,  // one element at a time
  kTokens,    // the tokens of a dim are contiguous: V of the K-packed layout
};

struct AttentionTile {
  DType dtype = DType::kFloat32;  // MMA type
  // The largest head dims that the tile serves. Smaller head dims are padded in shared memory.
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int warps_m = 0;
  int warps_d = 0;
  int warps_n = 0;
  int keys = 0;         // per KV tile of a warp group
  int ctas_per_sm = 0;  // CTAs that fit on an SM together; the launch bound
  ValueSource values = ValueSource::kOwn;

  constexpr int rows() const { return warps_m * 16; }
  constexpr int threads() const { return warps_m * warps_d * warps_n * 32; }
};

// The template that a kernel is an instance of.
enum class KernelFamily : int8_t {
  kGeneral,    // attention/cuda/general: every combination of features
  kDecode,     // attention/cuda/decode: a few rows, with a PDL prologue prefetch
  kWarpgroup,  // attention/cuda/hopper: wgmma
  kMla,        // attention/cuda/mla: absorbed MLA with wgmma
};

// Query rows of the tiles.
inline constexpr int kDecodeRows = 16;
inline constexpr int kLatentRows = 64;
inline constexpr int kWarpgroupRows = 128;

// The largest head dim if V is separate from K, and the largest head dims if V is the first columns
// of K.
inline constexpr int kMaxAttentionHeadDim = 512;
inline constexpr int kMaxLatentHeadDimQk = 576;
inline constexpr int kMaxLatentHeadDimV = 512;
// The largest head dim for which one warp can hold all columns of out. Larger head dims with V in K
// have separate kernels.
inline constexpr int kMaxHeadDimOfOneWarp = 256;

// The decode tile for this head dim also has an 8-warp variant with one CTA per SM, for 16-bit MMA
// types (IsWide() of attention/tile_schedule/tile_schedule.h).
inline constexpr int kHeadDimOfWideTiles = 128;

struct AttentionKernelEntry {
  AttentionTile tile;
  KvLoading loading = KvLoading::kDirect;
  KernelFamily family = KernelFamily::kGeneral;
  // Upper bound of the kernel's shared memory per CTA, in KB. Every card of compute capability 8.0
  // or later has at least 99 KB per CTA, 8.0 has 163 KB, and 9.0 has 227 KB.
  int shared_kilobytes = 99;

  // 2 for kernels that are tuned for one card, otherwise 1.
  constexpr int tier() const { return compute_capability() > 0 ? 2 : 1; }
  // The compute capability that the kernel requires; 90 means 9.0, and 0 means any.
  constexpr int compute_capability() const {
    return family == KernelFamily::kWarpgroup || family == KernelFamily::kMla ? 90 : 0;
  }
  constexpr int shared_bytes() const { return shared_kilobytes * 1024; }
  // Whether a CTA prepares its first unit before the previous kernel has ended
  // (attention/cuda/general/first_keys.cuh). Such kernels may also combine splits cooperatively,
  // and, with 16 rows, in clusters. The tile for kHeadDimOfWideTiles may have wide CTAs.
  constexpr bool prefetches_in_prologue() const { return family == KernelFamily::kDecode; }
  // Whether the kernel supports round-robin schedules (attention/tile_schedule/cta_units.h).
  constexpr bool may_be_dealt() const {
    return tile.rows() == kWarpgroupRows && tile.head_dim_qk <= 128;
  }
  // Whether the kernel triggers its dependents only after GridDependencySync()
  // (base/dependent_launch.cuh). The co-scheduled kernel for a call's other rows then waits for the
  // end of this kernel only before its own end.
  constexpr bool lets_sibling_in() const { return family == KernelFamily::kWarpgroup; }

  // "bfloat16.d128.rows16.direct", "bfloat16.d128.rows128.warpgroup",
  // "float16.d128.rows128.warpgroup.fp8".
  std::string name() const;
};

namespace kernel_rows {

inline constexpr DType kHalf = DType::kFloat16;
inline constexpr DType kFloat = DType::kFloat32;
inline constexpr ValueSource kInKeys = ValueSource::kKeyTile;
inline constexpr KvLoading kDirect = KvLoading::kDirect;
inline constexpr KvLoading kConverted = KvLoading::kConverted;
inline constexpr KvLoading kFp8 = KvLoading::kFp8;
inline constexpr KernelFamily kGeneral = KernelFamily::kGeneral;
inline constexpr KernelFamily kDecode = KernelFamily::kDecode;
inline constexpr KernelFamily kWarpgroup = KernelFamily::kWarpgroup;
inline constexpr KernelFamily kMla = KernelFamily::kMla;

// The kernels with MMA type float16. bfloat16 has the same kernels, except for the fp8 kernels.
//
// Shared memory holds two stages of K and V, 64 KB for a decode. In tier 1, a KV tile of fp8 keys
// has twice the keys of a 16-bit KV tile, but at most one key per thread of the warp group. Wide
// CTAs (kHeadDimOfWideTiles) have three stages. On an H200, two decode CTAs per SM read as fast as
// three, and produce fewer splits to combine. The warpgroup kernels for head_dim_v > 128 have KV
// tiles of 64 keys, because the logits of 128 keys do not fit into the registers.
inline constexpr AttentionKernelEntry kOf16Bits[] = {
    {{kHalf, 64, 64, 8, 1, 1, 128, 1}, kDirect, kWarpgroup, 227},
    {{kHalf, 64, 64, 8, 1, 1, 128, 1}, kFp8, kWarpgroup, 227},
    {{kHalf, 96, 96, 8, 1, 1, 128, 1}, kDirect, kWarpgroup, 227},
    {{kHalf, 96, 96, 8, 1, 1, 128, 1}, kFp8, kWarpgroup, 227},
    {{kHalf, 128, 128, 8, 1, 1, 128, 1}, kDirect, kWarpgroup, 227},
    {{kHalf, 128, 128, 8, 1, 1, 128, 1}, kFp8, kWarpgroup, 227},
    {{kHalf, 192, 128, 8, 1, 1, 128, 1}, kDirect, kWarpgroup, 227},
    {{kHalf, 256, 256, 8, 1, 1, 64, 1}, kDirect, kWarpgroup, 227},
    {{kHalf, 256, 256, 8, 1, 1, 64, 1}, kFp8, kWarpgroup, 227},
    {{kHalf, 576, 512, 4, 2, 1, 32, 1, kInKeys}, kDirect, kMla, 227},

    {{kHalf, 64, 64, 1, 1, 4, 32, 2}, kDirect, kDecode, 99},
    {{kHalf, 64, 64, 1, 1, 4, 32, 2}, kFp8, kDecode, 99},
    {{kHalf, 64, 64, 1, 1, 4, 32, 2}, kConverted, kGeneral, 99},
    {{kHalf, 64, 64, 2, 1, 2, 64, 2}, kDirect, kDecode, 99},
    {{kHalf, 64, 64, 2, 1, 2, 64, 2}, kFp8, kDecode, 99},
    {{kHalf, 64, 64, 8, 1, 1, 64, 1}, kDirect, kGeneral, 99},
    {{kHalf, 64, 64, 8, 1, 1, 128, 1}, kFp8, kGeneral, 99},
    {{kHalf, 64, 64, 8, 1, 1, 64, 1}, kConverted, kGeneral, 99},

    {{kHalf, 128, 128, 1, 1, 4, 16, 2}, kDirect, kDecode, 99},
    {{kHalf, 128, 128, 1, 1, 4, 32, 2}, kFp8, kDecode, 99},
    {{kHalf, 128, 128, 1, 1, 4, 16, 2}, kConverted, kGeneral, 99},
    {{kHalf, 128, 128, 2, 1, 2, 32, 2}, kDirect, kDecode, 99},
    {{kHalf, 128, 128, 2, 1, 2, 64, 2}, kFp8, kDecode, 99},
    {{kHalf, 128, 128, 8, 1, 1, 48, 1}, kDirect, kGeneral, 99},
    {{kHalf, 128, 128, 8, 1, 1, 96, 1}, kFp8, kGeneral, 99},
    {{kHalf, 128, 128, 8, 1, 1, 48, 1}, kConverted, kGeneral, 99},

    {{kHalf, 256, 256, 1, 1, 2, 16, 3}, kDirect, kGeneral, 99},
    {{kHalf, 256, 256, 1, 1, 2, 32, 3}, kFp8, kGeneral, 99},
    {{kHalf, 256, 256, 1, 1, 2, 16, 3}, kConverted, kGeneral, 99},
    {{kHalf, 256, 256, 4, 1, 1, 32, 2}, kDirect, kGeneral, 99},
    {{kHalf, 256, 256, 4, 1, 1, 64, 2}, kFp8, kGeneral, 99},
    {{kHalf, 256, 256, 4, 1, 1, 32, 2}, kConverted, kGeneral, 99},

    // These come before the kernels for head dims to 512, which also serve V in K.
    {{kHalf, 576, 512, 1, 4, 1, 32, 2, kInKeys}, kDirect, kGeneral, 99},
    {{kHalf, 576, 512, 1, 4, 1, 64, 2, kInKeys}, kFp8, kGeneral, 99},
    {{kHalf, 576, 512, 1, 4, 1, 32, 2, kInKeys}, kConverted, kGeneral, 99},
    {{kHalf, 576, 512, 4, 2, 1, 32, 1, kInKeys}, kDirect, kGeneral, 163},
    {{kHalf, 576, 512, 4, 2, 1, 64, 1, kInKeys}, kFp8, kGeneral, 227},
    {{kHalf, 576, 512, 4, 2, 1, 32, 1, kInKeys}, kConverted, kGeneral, 163},

    {{kHalf, 512, 512, 1, 4, 1, 16, 2}, kDirect, kGeneral, 99},
    {{kHalf, 512, 512, 1, 4, 1, 32, 2}, kFp8, kGeneral, 99},
    {{kHalf, 512, 512, 1, 4, 1, 16, 2}, kConverted, kGeneral, 99},
    {{kHalf, 512, 512, 4, 2, 1, 16, 1}, kDirect, kGeneral, 163},
    {{kHalf, 512, 512, 4, 2, 1, 32, 1}, kFp8, kGeneral, 163},
    {{kHalf, 512, 512, 4, 2, 1, 16, 1}, kConverted, kGeneral, 163},
};

// float32 is always loaded through the conversion, whose cost is negligible there.
inline constexpr AttentionKernelEntry kOfFloat32[] = {
    {{kFloat, 64, 64, 1, 1, 4, 16, 3}, kConverted, kGeneral, 99},
    {{kFloat, 128, 128, 1, 1, 2, 16, 3}, kConverted, kGeneral, 99},
    {{kFloat, 256, 256, 1, 1, 1, 16, 2}, kConverted, kGeneral, 99},
    {{kFloat, 576, 512, 1, 2, 1, 16, 1, kInKeys}, kConverted, kGeneral, 163},
    {{kFloat, 512, 512, 1, 4, 1, 8, 1}, kConverted, kGeneral, 163},
};

constexpr size_t NumThatLoadFp8() {
  size_t count = 0;
  for (const AttentionKernelEntry& kernel : kOf16Bits) count += kernel.loading == kFp8;
  return count;
}

inline constexpr size_t kNumKernels =
    2 * std::size(kOf16Bits) - NumThatLoadFp8() + std::size(kOfFloat32);

constexpr std::array<AttentionKernelEntry, kNumKernels> All() {
  std::array<AttentionKernelEntry, kNumKernels> all = {};
  size_t count = 0;
  for (const AttentionKernelEntry& kernel : kOf16Bits) all[count++] = kernel;
  for (const AttentionKernelEntry& kernel : kOf16Bits) {
    if (kernel.loading == kFp8) continue;
    all[count] = kernel;
    all[count++].tile.dtype = DType::kBFloat16;
  }
  for (const AttentionKernelEntry& kernel : kOfFloat32) all[count++] = kernel;
  return all;
}

}  // namespace kernel_rows

// All kernels, in order of preference among kernels with the same MMA type and equal rows. Tuned
// kernels come first. Smaller head dims come before larger head dims, but V in K comes before head
// dims to 512. Kernels that do not convert come before kernels that convert.
inline constexpr std::array<AttentionKernelEntry, kernel_rows::kNumKernels> kAttentionKernels =
    kernel_rows::All();

// The index of a kernel in kAttentionKernels, or -1.
constexpr int KernelIndex(DType dtype, int head_dim_qk, int rows, KvLoading loading,
                          KernelFamily family) {
  for (size_t i = 0; i < kAttentionKernels.size(); ++i) {
    const AttentionKernelEntry& kernel = kAttentionKernels[i];
    if (kernel.tile.dtype == dtype && kernel.tile.head_dim_qk == head_dim_qk &&
        kernel.tile.rows() == rows && kernel.loading == loading && kernel.family == family) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// The MMA type for q of `q_dtype`, unless the cache's type decides otherwise. fp8 becomes bfloat16,
// which holds every value of fp8.
constexpr DType ProductType(DType q_dtype) { return IsFp8(q_dtype) ? DType::kBFloat16 : q_dtype; }

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_TILES_H_
