// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "reprise/attention/cuda/attention_dispatch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "reprise/attention/cuda/decode/decode_launchers.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/hopper/warpgroup_launchers.h"
#include "reprise/attention/cuda/verify/verify_launchers.h"
#include "reprise/attention/work_map/tile_pair.h"
#include "reprise/attention/work_map/verify_tile.h"

namespace reprise {
namespace {

constexpr size_t kNumTiles = std::size(kAttentionTiles);

// float32 is always loaded through the conversion, whose cost is negligible there.
constexpr bool HasDirect(size_t index) { return kAttentionTiles[index].dtype != DType::kFloat32; }

// Caches of fp8 are multiplied in float16.
constexpr bool HasFp8(size_t index) { return kAttentionTiles[index].dtype == DType::kFloat16; }

constexpr size_t kNumWarpgroupKernels = 16;  // latent ones included

constexpr size_t kNumVerifyTiles = std::size(kVerifyTiles);
constexpr bool VerifyHasFp8(size_t index) { return kVerifyTiles[index].dtype == DType::kFloat16; }

constexpr size_t CountKernels() {
  size_t count = kNumTiles + kNumWarpgroupKernels + kNumVerifyTiles;
  for (size_t i = 0; i < kNumTiles; ++i) count += HasDirect(i) + HasFp8(i);
  for (size_t i = 0; i < kNumVerifyTiles; ++i) count += VerifyHasFp8(i);
  return count;
}

using Table = std::array<AttentionKernelEntry, CountKernels()>;

template <size_t kIndex, KvLoading kLoading>
constexpr AttentionKernelEntry EntryOf() {
  AttentionKernelEntry entry = {.tile = kAttentionTiles[kIndex], .loading = kLoading};
  if constexpr (StartsAhead(kAttentionTiles[kIndex], kLoading)) {
    entry.launch = &LaunchDecodeAttention<kIndex, kLoading>;
    entry.shared_bytes = &DecodeSharedBytes<kIndex, kLoading>;
  } else {
    entry.launch = &LaunchAttention<kIndex, kLoading>;
    entry.shared_bytes = &AttentionSharedBytes<kIndex, kLoading>;
  }
  return entry;
}

template <size_t kIndex, KvLoading kLoading>
constexpr AttentionKernelEntry VerifyEntryOf() {
  AttentionKernelEntry entry = {.tile = kVerifyTiles[kIndex],
                                .loading = kLoading,
                                .launch = &LaunchVerifyAttention<kIndex, kLoading>,
                                .shared_bytes = &VerifySharedBytes<kIndex, kLoading>};
  entry.tile.keys = KeysOfStep(entry.tile, kLoading);
  return entry;
}

template <DType kDType, int kHeadDim, KvLoading kLoading>
constexpr AttentionKernelEntry WarpgroupEntryOf() {
  return {.tier = 2,
          .tile = WarpgroupTile(kDType, kHeadDim, kHeadDim),
          .loading = kLoading,
          .compute_capability = 90,
          .lets_sibling_in = true,
          .launch = &LaunchWarpgroupAttention<kDType, kHeadDim, kLoading>,
          .shared_bytes = &WarpgroupSharedBytes<kDType, kHeadDim, kLoading>};
}

// The same for the other head dims.
template <DType kDType, int kHeadDimQk, int kHeadDimV, KvLoading kLoading>
constexpr AttentionKernelEntry WarpgroupHeadsEntryOf() {
  return {.tier = 2,
          .tile = WarpgroupTile(kDType, kHeadDimQk, kHeadDimV),
          .loading = kLoading,
          .compute_capability = 90,
          .lets_sibling_in = true,
          .launch = &LaunchWarpgroupHeads<kDType, kHeadDimQk, kHeadDimV, kLoading>,
          .shared_bytes = &WarpgroupHeadsSharedBytes<kDType, kHeadDimQk, kHeadDimV, kLoading>};
}

// All for a type that load directly.
template <DType kDType>
constexpr void AddWarpgroups(AttentionKernelEntry* table, size_t& count) {
  table[count++] = WarpgroupEntryOf<kDType, 64, KvLoading::kDirect>();
  table[count++] = WarpgroupHeadsEntryOf<kDType, 96, 96, KvLoading::kDirect>();
  table[count++] = WarpgroupEntryOf<kDType, 128, KvLoading::kDirect>();
  table[count++] = WarpgroupHeadsEntryOf<kDType, 192, 128, KvLoading::kDirect>();
  table[count++] = WarpgroupHeadsEntryOf<kDType, 256, 256, KvLoading::kDirect>();
}

// The kernels for latent heads.
template <DType kDType>
constexpr AttentionKernelEntry LatentEntryOf() {
  return {.tier = 2,
          .tile = kAttentionTiles[AttentionTileIndex(kDType, kMaxLatentHeadDimQk, kLatentRows)],
          .compute_capability = 90,
          .launch = &LaunchLatentAttention<kDType>,
          .shared_bytes = &LatentSharedBytes<kDType>};
}

template <size_t kIndex>
constexpr void AddFp8Tile(Table& table, size_t& count) {
  if constexpr (HasFp8(kIndex)) {
    AttentionKernelEntry& entry = table[count++];
    entry = EntryOf<kIndex, KvLoading::kFp8>();
    entry.tile.keys = KeysOfStep(entry.tile, entry.loading);
  }
}

template <size_t kIndex>
constexpr void AddVerifyTile(Table& table, size_t& count) {
  table[count++] = VerifyEntryOf<kIndex, KvLoading::kDirect>();
  if constexpr (VerifyHasFp8(kIndex)) table[count++] = VerifyEntryOf<kIndex, KvLoading::kFp8>();
}

template <size_t kIndex>
constexpr void AddTile(Table& table, size_t& count) {
  if constexpr (HasDirect(kIndex)) table[count++] = EntryOf<kIndex, KvLoading::kDirect>();
  table[count++] = EntryOf<kIndex, KvLoading::kConverted>();
}

template <size_t... kIndices, size_t... kVerifyIndices>
constexpr Table MakeTable(std::index_sequence<kIndices...>,
                          std::index_sequence<kVerifyIndices...>) {
  Table table;
  size_t count = 0;
  AddWarpgroups<DType::kFloat16>(table.data(), count);
  table[count++] = LatentEntryOf<DType::kFloat16>();
  AddWarpgroups<DType::kBFloat16>(table.data(), count);
  table[count++] = LatentEntryOf<DType::kBFloat16>();
  table[count++] = WarpgroupEntryOf<DType::kFloat16, 64, KvLoading::kFp8>();
  table[count++] = WarpgroupHeadsEntryOf<DType::kFloat16, 96, 96, KvLoading::kFp8>();
  table[count++] = WarpgroupEntryOf<DType::kFloat16, 128, KvLoading::kFp8>();
  table[count++] = WarpgroupHeadsEntryOf<DType::kFloat16, 256, 256, KvLoading::kFp8>();
  (AddVerifyTile<kVerifyIndices>(table, count), ...);
  (AddFp8Tile<kIndices>(table, count), ...);
  (AddTile<kIndices>(table, count), ...);
  return table;
}

// Tuned kernels first, then those for a few queries a row and those for fp8. Within a type, kernels
// are in order of head dim, and those that load directly come first.
constexpr Table kTable =
    MakeTable(std::make_index_sequence<kNumTiles>(), std::make_index_sequence<kNumVerifyTiles>());

// Whether `products` holds every value of `source`.
bool Holds(DType products, DType source) {
  return products == DType::kFloat32 || products == source || IsFp8(source);
}

// The type in which the kernels other than those for fp8 multiply.
DType ProductsOf(const AttentionKernelKey& key) {
  if (key.products) return *key.products;
  if (IsFp8(key.q_dtype) && key.kv_dtype == DType::kFloat16) return DType::kFloat16;
  return ProductType(key.q_dtype);
}

// A map for the tiles of verify_tile.h fits those of 128 rows as well, whose converting kernels serve
// what the kernels of the smaller tiles, which do not convert, leave.
bool ServesInPlaceOfVerify(const AttentionKernelEntry& kernel, int tile_rows) {
  return tile_rows == kVerifyRows && kernel.tile.rows() == kWarpgroupRows &&
         kernel.loading == KvLoading::kConverted;
}

// A map for pairs of tiles fits the kernels of one such tile, which take a pair's tiles one by one.
bool ServesPairs(const AttentionKernelEntry& kernel, int tile_rows) {
  return tile_rows == 2 * kernel.tile.rows() && IsPlannedInPairs(kernel.tile);
}

// The rules, from the coarsest to the finest, each with a description of what is supported.
struct Rule {
  const char* supported;
  bool (*holds)(const AttentionKernelEntry& kernel, const AttentionKernelKey& key);
};

constexpr Rule kRules[] = {
    {"tuned kernels, unless tier 1 is asked for, on the cards they are made for",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tier <= key.max_tier &&
              (!kernel.compute_capability || kernel.compute_capability == key.compute_capability);
     }},
    {"products in float32, float16 and bfloat16",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) {
         return key.products.value_or(kernel.tile.dtype) == kernel.tile.dtype;
       }
       return kernel.tile.dtype == ProductsOf(key);
     }},
    {"q of the products' type, of fp8, or with products in float32 of any",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) return SizeOf(key.q_dtype) <= 2;
       return Holds(kernel.tile.dtype, key.q_dtype);
     }},
    {"KV of q's type, of fp8, or with products in float32 of any",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) return IsFp8(key.kv_dtype) && !key.rope_dtype;
       return Holds(kernel.tile.dtype, key.kv_dtype) &&
              (!key.rope_dtype || Holds(kernel.tile.dtype, *key.rope_dtype));
     }},
    {"head dims to 512, and to 576 for K where V is the first columns of K",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return key.head_dim_qk <= kernel.tile.head_dim_qk &&
              key.head_dim_v <= kernel.tile.head_dim_v;
     }},
    {"V that is the first columns of K, for head dims of K beyond 512",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.tile.values == ValueSource::kOwn) return true;
       return key.values == ValueSource::kKeyTile &&
              std::max(key.head_dim_qk, key.head_dim_v) > kMaxHeadDimOfOneWarp;
     }},
    {"rotary embedding in the kernel, for head dims to 512",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tile.values == ValueSource::kOwn || !key.has_rotary;
     }},
    {"general kernels, for custom masks, scales per q head and slopes per sequence",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tier == 1 || !key.is_general;
     }},
    {"the tile rows that PlanWorkMap() chooses for the type of the products",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tile.rows() == key.tile_rows || ServesPairs(kernel, key.tile_rows) ||
              ServesInPlaceOfVerify(kernel, key.tile_rows);
     }},
    {"cards with the shared memory that the kernel takes",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return !key.max_shared_bytes || kernel.shared_bytes() <= *key.max_shared_bytes;
     }},
    {"K and V of q's type or of fp8 in whole chunks of 16 bytes, and no more to be done to them",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.loading == KvLoading::kConverted || kernel.loading == key.loading;
     }},
};

// The first rule that excludes the kernel; null if there is none.
const Rule* Against(const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
  for (const Rule& rule : kRules) {
    if (!rule.holds(kernel, key)) return &rule;
  }
  return nullptr;
}

std::string Describe(const AttentionKernelKey& key) {
  std::string text =
      absl::StrCat("q of ", std::string(DTypeName(key.q_dtype)), ", KV of ",
                   std::string(DTypeName(key.kv_dtype)), ", head dims ", key.head_dim_qk, " and ",
                   key.head_dim_v, ", tiles of ", key.tile_rows, " rows");
  if (key.values == ValueSource::kKeyTile) absl::StrAppend(&text, ", V in K");
  if (key.has_rotary) absl::StrAppend(&text, ", rotary");
  if (key.rope_dtype) {
    absl::StrAppend(&text, ", rope parts of ", std::string(DTypeName(*key.rope_dtype)));
  }
  if (key.is_general) {
    absl::StrAppend(&text, ", a custom mask, scales per q head or slopes per sequence");
  }
  if (key.products) {
    absl::StrAppend(&text, ", products in ", std::string(DTypeName(*key.products)));
  }
  return text;
}

}  // namespace

std::string AttentionKernelEntry::name() const {
  const char* const how = loading == KvLoading::kDirect ? ".direct"
                          : loading == KvLoading::kFp8  ? ".fp8"
                                                        : ".converted";
  return absl::StrCat(std::string(DTypeName(tile.dtype)), ".d", tile.head_dim_qk, ".rows",
                      tile.rows(), tier > 1 ? ".warpgroup" : "",
                      tier > 1 && loading == KvLoading::kDirect ? "" : how);
}

absl::Span<const AttentionKernelEntry> AttentionKernels() { return kTable; }

absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key) {
  const Rule* finest = nullptr;
  for (const AttentionKernelEntry& kernel : kTable) {
    const Rule* against = Against(kernel, key);
    if (against == nullptr) return &kernel;
    if (finest == nullptr || against > finest) finest = against;
  }
  return absl::UnimplementedError(absl::StrCat("no attention kernel on CUDA for ", Describe(key),
                                               ": supported are ", finest->supported));
}

std::string AttentionKernelTable() {
  std::string table;
  for (const AttentionKernelEntry& kernel : kTable) {
    const AttentionTile& tile = kernel.tile;
    absl::StrAppendFormat(&table, "tier %d  %-35s head dims <= %3d, %3d  %3d rows  ", kernel.tier,
                          kernel.name(), tile.head_dim_qk, tile.head_dim_v, tile.rows());
    // The warpgroup kernels have their own sizes.
    if (kernel.tier > 1) {
      absl::StrAppendFormat(&table, "%-36s", "whole warpgroups");
    } else {
      absl::StrAppendFormat(&table, "%d x %d x %d warps  %2d keys  %d CTAs/SM  ", tile.warps_m,
                            tile.warps_d, tile.warps_n, tile.keys, tile.ctas_per_sm);
    }
    absl::StrAppendFormat(&table, "%6d bytes\n", kernel.shared_bytes());
  }
  return table;
}

std::string ExplainAttentionKernels(const AttentionKernelKey& key) {
  std::string text = absl::StrCat(Describe(key), "\n");
  for (const AttentionKernelEntry& kernel : kTable) {
    const Rule* against = Against(kernel, key);
    absl::StrAppendFormat(&text, "  %-34s  %s\n", kernel.name(),
                          against ? absl::StrCat("wants ", against->supported) : "serves");
  }
  return text;
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
