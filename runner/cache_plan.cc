#include "reprise/runner/cache_plan.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

KvPageLayer PageLayerOf(const ModelRunnerOptions& options, const LayerSpec& layer, int group) {
  return {.group = group,
          .num_kv_heads = layer.params.num_kv_heads,
          .head_dim_qk = layer.params.head_dim_qk,
          .head_dim_v = layer.params.head_dim_v,
          .dtype = *options.cache.dtype,
          .order = options.cache.order,
          .form = layer.v_in_k ? KvForm::kLatent : options.cache.form};
}

// Returns the layout as pages, and sets `cache_layer`. Used even if all layers are identical.
KvPageLayoutOptions PagesOf(const ModelRunnerOptions& options, const ModelSpec& spec,
                            const LayerClasses& classes,
                            std::vector<std::optional<int>>& cache_layer) {
  // This rank stores its part of a block's tokens.
  const int num_parts = options.ranks.context_ranks;
  KvPageLayoutOptions pages = {.num_blocks = 2, .block_size = options.cache.block_size / num_parts};
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!classes.group_of_layer[i]) {
      cache_layer.push_back(std::nullopt);
      continue;
    }
    KvPageLayer layer = PageLayerOf(options, spec.layers[i], *classes.group_of_layer[i]);
    if (*classes.cache_of_layer[i] != static_cast<int>(i)) {
      layer.shares_with = cache_layer[*classes.cache_of_layer[i]];
    }
    cache_layer.push_back(static_cast<int>(pages.layers.size()));
    pages.layers.push_back(layer);
  }
  return pages;
}

// Returns the layout for identical layers.
KvLayoutOptions LayoutOf(const KvPageLayoutOptions& pages) {
  const KvPageLayer& layer = pages.layers.front();
  return {.num_layers = static_cast<int>(pages.layers.size()),
          .num_blocks = pages.num_blocks,
          .block_size = pages.block_size,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v,
          .dtype = layer.dtype,
          .order = layer.order,
          .form = layer.form};
}

}  // namespace

absl::StatusOr<CachePlan> CachePlan::Create(const ModelRunnerOptions& options,
                                            const ModelSpec& spec, const LayerClasses& classes) {
  CachePlan plan;
  plan.options_ = options;
  plan.groups_ = classes.groups;
  const KvPageLayoutOptions pages = PagesOf(options, spec, classes, plan.cache_layer_);
  const bool alike = std::all_of(pages.layers.begin(), pages.layers.end(),
                                 [&](const auto& layer) { return layer == pages.layers.front(); });
  if (alike && pages.layers.size() == spec.layers.size()) {
    plan.layout_ = LayoutOf(pages);
    REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(LayoutOf(pages)));
    plan.bytes_per_block_ = layout.bytes_per_block();
  } else {
    plan.layout_ = pages;
    REPRISE_ASSIGN_OR_RETURN(const KvPageLayout layout, KvPageLayout::Create(pages));
    plan.bytes_per_block_ = layout.page_bytes();
  }
  return plan;
}

int64_t CachePlan::BlocksOfSequence() const {
  const auto blocks = [&](int64_t num_tokens) {
    return CeilDiv(num_tokens, options_.cache.block_size);
  };
  int64_t num_blocks = 0;
  for (const KvGroupSpec& group : groups_) {
    int64_t num_tokens = *options_.max_seq_len;
    if (group.retention == KvRetention::kCross) num_tokens = *options_.max_encoder_tokens;
    if (group.retention == KvRetention::kSlidingWindow ||
        group.retention == KvRetention::kChunkedLocal) {
      // The retained blocks, the blocks that a step writes, and one block that holds tokens of
      // both.
      num_tokens = std::min<int64_t>(
          num_tokens, int64_t{group.span} + options_.max_num_tokens + options_.cache.block_size);
    }
    num_blocks += blocks(num_tokens);
  }
  return num_blocks;
}

absl::StatusOr<int> CachePlan::ChooseNumBlocks(std::optional<int64_t> free_bytes,
                                               int64_t other_bytes) const {
  if (const auto* const blocks = std::get_if<NumBlocks>(&options_.cache.size)) return blocks->value;
  if (const auto* const bytes = std::get_if<NumBytes>(&options_.cache.size)) {
    return std::visit([&](const auto& layout) { return NumBlocksForBytes(layout, bytes->value); },
                      layout_);
  }
  int64_t num_blocks = 1 + BlocksOfSequence() * options_.max_num_seqs;
  if (free_bytes) {
    const int64_t fit = (*free_bytes - other_bytes) / 10 * 9 / bytes_per_block_;
    if (fit < 2) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory is left for the KV cache: ", *free_bytes,
                       " bytes are free, graphs and eager steps take ", other_bytes,
                       ", a block takes ", bytes_per_block_));
    }
    num_blocks = std::min(num_blocks, fit);
  }
  return static_cast<int>(std::min<int64_t>(num_blocks, std::numeric_limits<int>::max()));
}

absl::StatusOr<KvCache> CachePlan::Allocate(int num_blocks, c10::Device device) const {
  if (const auto* pages = std::get_if<KvPageLayoutOptions>(&layout_)) {
    KvPageLayoutOptions options = *pages;
    options.num_blocks = num_blocks;
    REPRISE_ASSIGN_OR_RETURN(const KvPageLayout layout, KvPageLayout::Create(options));
    return KvCache::Create(layout, device);
  }
  KvLayoutOptions options = std::get<KvLayoutOptions>(layout_);
  options.num_blocks = num_blocks;
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(options));
  return KvCache::Create(layout, device);
}

std::vector<KvLayer> CachePlan::LayersOf(const KvCache& cache) const {
  std::vector<KvLayer> layers;
  for (const std::optional<int>& cache_layer : cache_layer_) {
    layers.push_back(cache_layer ? cache.layer(*cache_layer) : KvLayer{});
  }
  return layers;
}

}  // namespace reprise
