// The attention kernels of CUDA as data. kAttentionKernels lists every kernel with its tile, its way of
// loading keys, and the shared memory that it needs. Plans of work maps, the dispatch and the
// instantiations of the kernels use this table.
//
// A tile is `rows` rows of q (queries times the heads of a group) against steps of keys. Its CTA
// has warps_m x warps_d x warps_n warps of 16 rows each: the warps_m x warps_d warps of a group
// share a step of `keys` keys, and the warps_n groups alternate steps. warps_d warps have the same
// rows and divide the dims of Q K^T and the columns of P V.
//
//   decode:  1 x 1 x 4 warps, 16 keys a warp: every warp loads its own keys, no barrier in the loop
//   verify:  2 x 1 x 2 warps, for 17 to 32 rows: drafts to verify (5 queries of 4 heads a group are
//            20 rows), short last chunks of prompts, decodes of more than 16 heads a group. A tile of
//            128 rows would be nearly empty, and would run one CTA per multiprocessor; reading the
//            cache at full speed takes two. A tile of 64 rows without whole warpgroups would be bound
//            by its products: it reads half as many bytes per second.
//   prefill: 8 x 1 x 1 warps, 48 or 64 keys a CTA: each key is loaded once for 128 rows; 4 x 1 x 1
//            for head dims to 256
//   MLA, and head dims to 512: 1 x 4 x 1 and 4 x 2 x 1 warps, since 512 columns of out are more
//            than a warp can hold
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
  kKeyTile,  // the first columns of K: absorbed MLA
};

// How keys and values reach the products.
enum class KvLoading : int8_t {
  // Unconverted: K, V and q have the products' type, and heads are whole chunks of 16 bytes.
  kDirect,
  // Through a conversion: any type whose values the products' type holds exactly, any strides,
  // rotary embedding, new keys from tensors.
  kConverted,
  // Unconverted: K and V are fp8, and heads are whole chunks of 16 bytes. Products are in float16,
  // which holds every value of fp8; q of 16 bits or fp8 is scaled by a power of two per row to fit.
  kFp8,
};

// How a KvView can be read.
enum class KvAccess : int8_t {
  kChunks,    // heads are whole chunks of 16 bytes at multiples of 16 bytes
  kElements,  // one element at a time
  kTokens,    // a dim's tokens are contiguous: V of the K-packed layout
};

struct AttentionTile {
  DType dtype = DType::kFloat32;  // of the products
  // The largest head dims that the tile serves; smaller ones are padded in shared memory.
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int warps_m = 0;
  int warps_d = 0;
  int warps_n = 0;
  int keys = 0;         // in a step of one group of warps
  int ctas_per_sm = 0;  // that fit on a multiprocessor together; the launch bound
  ValueSource values = ValueSource::kOwn;

  constexpr int rows() const { return warps_m * 16; }
  constexpr int threads() const { return warps_m * warps_d * warps_n * 32; }
};

// The template that a kernel is an instance of.
enum class KernelFamily : int8_t {
  kGeneral,    // attention/cuda/general: every combination
  kDecode,     // attention/cuda/decode: a few rows, with the first unit prepared ahead
  kWarpgroup,  // attention/cuda/hopper: products by whole warpgroups
  kLatent,     // attention/cuda/latent: absorbed MLA by whole warpgroups
};

// Rows of q of the tiles.
inline constexpr int kDecodeRows = 16;
inline constexpr int kLatentRows = 64;
inline constexpr int kWarpgroupRows = 128;

// The largest head dim where V is not the first columns of K, and the largest ones where it is.
inline constexpr int kMaxAttentionHeadDim = 512;
inline constexpr int kMaxLatentHeadDimQk = 576;
inline constexpr int kMaxLatentHeadDimV = 512;
// The largest head dim whose columns of out one warp can hold. Separate kernels serve V in K with larger
// head dims.
inline constexpr int kMaxHeadDimOfOneWarp = 256;

// The decode tile for this head dim also has a kernel with twice the groups of warps and one CTA per
// multiprocessor, for products of 16 bits.
inline constexpr int kHeadDimOfWideTiles = 128;

struct AttentionKernelEntry {
  AttentionTile tile;
  KvLoading loading = KvLoading::kDirect;
  KernelFamily family = KernelFamily::kGeneral;
  // The kernel fits into this much shared memory per CTA. Every card has 99 KB, compute capability 8.0 and
  // 9.0 have 163 KB, and 9.0 has 227 KB.
  int shared_kilobytes = 99;

  // 2 for kernels that are tuned for one card, 1 for all others.
  constexpr int tier() const { return compute_capability() > 0 ? 2 : 1; }
  // The compute capability that the kernel requires; 90 means 9.0, and 0 means any.
  constexpr int compute_capability() const {
    return family == KernelFamily::kWarpgroup || family == KernelFamily::kLatent ? 90 : 0;
  }
  constexpr int shared_bytes() const { return shared_kilobytes * 1024; }
  // Whether a CTA prepares its first unit before the kernel before this one has ended
  // (attention/cuda/general/first_keys.cuh). Such kernels also merge in clusters and jointly, and
  // may have wide CTAs.
  constexpr bool begins_ahead() const { return family == KernelFamily::kDecode; }
  // Whether the kernel takes units that are dealt (attention/work_map/cta_units.h).
  constexpr bool may_be_dealt() const {
    return tile.rows() == kWarpgroupRows && tile.head_dim_qk <= 128;
  }
  // Whether it lets the next kernel of the stream in only after AwaitKernelBefore()
  // (base/dependent_launch.cuh). Then the kernel for a call's other rows need not wait for its end.
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
inline constexpr KernelFamily kLatent = KernelFamily::kLatent;

// The kernels for products in float16. Products in bfloat16 have the same kernels, without those for fp8.
//
// Shared memory holds two stages of K and V, 64 KB for a decode. A step of fp8 keys has twice the keys of
// a step of 16 bits, or one key per thread of the group if that is less. On an H200 two CTAs of a decode
// per multiprocessor read as quickly as three, and leave fewer pieces to merge. The warpgroup kernels for
// more than 128 columns of V have steps of 64 keys, because logits of 128 keys would not fit into the
// registers.
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
    {{kHalf, 576, 512, 4, 2, 1, 32, 1, kInKeys}, kDirect, kLatent, 227},

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

    // Before those for head dims to 512, which also serve V in K.
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

// All kernels, in the order of preference for calls that several tiles of equal rows serve. Tuned kernels
// come first, smaller head dims before larger ones, and kernels that do not convert before the others.
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

// The type in which q of `q_dtype` is multiplied unless the cache's type decides otherwise: fp8
// becomes bfloat16, which holds every value of it.
constexpr DType ProductType(DType q_dtype) { return IsFp8(q_dtype) ? DType::kBFloat16 : q_dtype; }

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_TILES_H_
