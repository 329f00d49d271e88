#include "reprise/attention/cuda/attention_dispatch.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

// Whether `products` holds every value of `source`.
bool Holds(DType products, DType source) {
  return products == DType::kFloat32 || products == source || IsFp8(source);
}

// The MMA type of the call, for kernels other than the fp8 kernels.
DType ProductsOf(const AttentionKernelKey& key) {
  if (key.products) return *key.products;
  if (IsFp8(key.q_dtype) && key.kv_dtype == DType::kFloat16) return DType::kFloat16;
  return ProductType(key.q_dtype);
}

// The largest head dim of K that a tile for the call may have. Tiles with larger head dims would
// only add padding.
int LargestTileFor(const AttentionKernelKey& key) {
  const int dims = std::max(key.head_dim_qk, key.head_dim_v);
  for (const int head_dim : {64, 128, kMaxHeadDimOfOneWarp}) {
    if (dims <= head_dim) return head_dim;
  }
  return key.values == ValueSource::kKeyTile ? kMaxLatentHeadDimQk : kMaxAttentionHeadDim;
}

// The rules, in order from coarse to fine, with a description of the supported calls.
struct Rule {
  const char* supported;
  bool (*holds)(const AttentionKernelEntry& kernel, const AttentionKernelKey& key);
};

constexpr Rule kRules[] = {
    {"tier 2 kernels on the cards that they are tuned for, unless max_tier is 1",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tier() <= key.max_tier &&
              (kernel.tier() == 1 || kernel.compute_capability() == key.compute_capability);
     }},
    {"products in float32, float16 and bfloat16",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) {
         return key.products.value_or(kernel.tile.dtype) == kernel.tile.dtype;
       }
       return kernel.tile.dtype == ProductsOf(key);
     }},
    {"q in the type of the products, in fp8, or, with products in float32, in any type",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) return SizeOf(key.q_dtype) <= 2;
       return Holds(kernel.tile.dtype, key.q_dtype);
     }},
    {"KV in q's type, in fp8, or, with products in float32, in any type",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       if (kernel.loading == KvLoading::kFp8) return IsFp8(key.kv_dtype) && !key.rope_dtype;
       return Holds(kernel.tile.dtype, key.kv_dtype) &&
              (!key.rope_dtype || Holds(kernel.tile.dtype, *key.rope_dtype));
     }},
    {"head dims to 512, or to 576 for K if V is the first columns of K",
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
    {"tiles with the smallest sufficient head dims",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tile.head_dim_qk <= LargestTileFor(key);
     }},
    {"rotary embedding in the kernel, for head dims to 512",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tile.values == ValueSource::kOwn || !key.has_rotary;
     }},
    {"general kernels, for custom masks, scales per q head and slopes per sequence",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.tier() == 1 || !key.is_general;
     }},
    {"K and V in q's type or fp8, in whole 16-byte chunks, without rotary embedding, rope parts or "
     "new keys",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return kernel.loading == KvLoading::kConverted || kernel.loading == key.loading;
     }},
    {"tiles of at least the rows of the tile schedule, which was planned for other products, keys "
     "or masks",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return !key.is_planned || kernel.tile.rows() >= key.rows;
     }},
    {"cards with the shared memory that the kernel takes",
     [](const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
       return key.max_shared_bytes == 0 || kernel.shared_bytes() <= key.max_shared_bytes;
     }},
};

// The first rule that excludes the kernel, or null if all rules hold.
const Rule* Against(const AttentionKernelEntry& kernel, const AttentionKernelKey& key) {
  for (const Rule& rule : kRules) {
    if (!rule.holds(kernel, key)) return &rule;
  }
  return nullptr;
}

// Whether tiles of `a` rows are better for `rows` rows than tiles of `b` rows.
bool IsBetter(int a, int b, int rows) {
  if (a < rows || b < rows) return a > b;
  return a < b;
}

std::string Describe(const AttentionKernelKey& key) {
  std::string text =
      absl::StrCat("q of ", std::string(DTypeName(key.q_dtype)), ", KV of ",
                   std::string(DTypeName(key.kv_dtype)), ", head dims ", key.head_dim_qk, " and ",
                   key.head_dim_v, ", tiles of ", key.rows, " rows");
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
                      tile.rows(), tier() > 1 ? ".warpgroup" : "",
                      tier() > 1 && loading == KvLoading::kDirect ? "" : how);
}

absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key) {
  const AttentionKernelEntry* best = nullptr;
  const Rule* finest = nullptr;
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const Rule* against = Against(kernel, key);
    if (against != nullptr) {
      if (finest == nullptr || against > finest) finest = against;
    } else if (best == nullptr || IsBetter(kernel.tile.rows(), best->tile.rows(), key.rows)) {
      best = &kernel;
    }
  }
  if (best != nullptr) return best;
  return absl::UnimplementedError(absl::StrCat("no attention kernel on CUDA for ", Describe(key),
                                               ": supported are ", finest->supported));
}

std::string AttentionKernelTable() {
  std::string table;
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const AttentionTile& tile = kernel.tile;
    absl::StrAppendFormat(&table, "tier %d  %-35s head dims <= %3d, %3d  %3d rows  ", kernel.tier(),
                          kernel.name(), tile.head_dim_qk, tile.head_dim_v, tile.rows());
    // The numbers of warps in `tile` do not describe the warpgroup kernels.
    if (kernel.tier() > 1) {
      absl::StrAppendFormat(&table, "%-36s", "whole warpgroups");
    } else {
      absl::StrAppendFormat(&table, "%d x %d x %d warps  %2d keys  %d CTAs/SM  ", tile.warps_m,
                            tile.warps_d, tile.warps_n, tile.keys, tile.ctas_per_sm);
    }
    absl::StrAppendFormat(&table, "%3d KB\n", kernel.shared_kilobytes);
  }
  return table;
}

std::string ExplainAttentionKernels(const AttentionKernelKey& key) {
  std::string text = absl::StrCat(Describe(key), "\n");
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const Rule* against = Against(kernel, key);
    absl::StrAppendFormat(
        &text, "  %-34s  %s\n", kernel.name(),
        against ? absl::StrCat("not this one; supported: ", against->supported) : "serves");
  }
  return text;
}

}  // namespace reprise
