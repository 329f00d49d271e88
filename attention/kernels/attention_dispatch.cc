// Empty in builds without CUDA.
#ifdef REPRISE_WITH_CUDA

#include "attention/kernels/attention_dispatch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/kernels/attention_launchers.h"

namespace reprise {
namespace {

constexpr size_t kNumKernels = std::size(kAttentionTiles);

template <size_t... kIndices>
constexpr std::array<AttentionKernelEntry, kNumKernels> MakeTable(
    std::index_sequence<kIndices...>) {
  return {AttentionKernelEntry{kAttentionTiles[kIndices], &LaunchAttention<kIndices>}...};
}

constexpr std::array<AttentionKernelEntry, kNumKernels> kTable =
    MakeTable(std::make_index_sequence<kNumKernels>());

}  // namespace

absl::Span<const AttentionKernelEntry> AttentionKernels() { return kTable; }

absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key) {
  const int head_dim = std::max(key.head_dim_qk, key.head_dim_v);
  const AttentionKernelEntry* best = nullptr;
  for (const AttentionKernelEntry& entry : kTable) {
    if (entry.tile.dtype != key.q_dtype || entry.tile.dtype != key.kv_dtype) continue;
    if (entry.tile.rows() != key.tile_rows || entry.tile.head_dim < head_dim) continue;
    if (best == nullptr || entry.tile.head_dim < best->tile.head_dim) best = &entry;
  }
  if (best != nullptr) return best;
  return absl::UnimplementedError(absl::StrCat(
      "no attention kernel on CUDA for q of ", std::string(DTypeName(key.q_dtype)), ", KV of ",
      std::string(DTypeName(key.kv_dtype)), ", head dims ", key.head_dim_qk, " and ",
      key.head_dim_v, ", tiles of ", key.tile_rows,
      " rows: supported are float32, float16 and bfloat16 for q and KV alike, head dims to ",
      kMaxAttentionHeadDim, ", and the tile rows that PlanWorkMap() chooses"));
}

std::string AttentionKernelTable() {
  std::string table;
  for (const AttentionKernelEntry& entry : kTable) {
    const AttentionTile& tile = entry.tile;
    absl::StrAppendFormat(&table,
                          "%-8s  head_dim <= %3d  %2d rows  %d x %d warps  %2d keys  %d CTAs/SM\n",
                          std::string(DTypeName(tile.dtype)), tile.head_dim, tile.rows(),
                          tile.warps_m, tile.warps_n, tile.keys, tile.ctas_per_sm);
  }
  return table;
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
