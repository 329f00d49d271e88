// The layout of layers that are not alike in one pool of pages: groups with block tables of their
// own (cache/kv_group.h), different heads and dims, latents, layers that share their keys.
//
//   // Gemma-like: 2 layers of a window (group 0), one of full attention (group 1).
//   KvPageLayout layout = *KvPageLayout::Create(
//       {.num_blocks = 4096,
//        .layers = {{.group = 0, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128},
//                   {.group = 0, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128},
//                   {.group = 1, .num_kv_heads = 4, .head_dim_qk = 256, .head_dim_v = 256}}});
//   KvCache cache = *KvCache::Create(layout, at::Device(at::kCUDA, 0));
//
// One buffer of num_blocks pages; block id b of any group is page b. A page holds one block of all
// layers of one group, that for which the block was allocated, so groups share the memory of pages:
//
//   page b   | layer 0: k | v | layer 1: k | v |        |    as a block of group 0
//            | layer 2: k          | v         | unused |    as a block of group 1
//
// page_bytes is the size of the largest group. Each tensor of a layer is at a fixed offset within
// the page; offsets and pages begin at multiples of 256 bytes. The strides of a block are those of
// a KvLayout of the layer alone (cache/storage/kv_layout.h), and the step from block to block is
// the page. The blocks of a model of one group hold all layers.
//
// A layer that shares the keys of an earlier one has the earlier one's place and group.
//
// No LibTorch and no storage: KvCache (cache/storage/kv_cache.h) has the tensors. A value; thread
// safety: const.

#ifndef REPRISE_CACHE_STORAGE_KV_PAGE_LAYOUT_H_
#define REPRISE_CACHE_STORAGE_KV_PAGE_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {

// The keys and values that a layer keeps of each token.
struct KvPageLayer {
  int group = 0;
  // An earlier layer whose memory this one reads, and to which this one writes nothing. All other
  // fields must be equal to that layer's.
  std::optional<int> shares_with = {};
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  DType dtype = DType::kFloat32;
  KvOrder order = KvOrder::kNHD;
  KvForm form = KvForm::kPair;

  friend bool operator==(const KvPageLayer&, const KvPageLayer&) = default;
};

struct KvPageLayoutOptions {
  int num_blocks = 0;   // pages, the null block included
  int block_size = 16;  // tokens a block, in all groups; any from 1
  std::vector<KvPageLayer> layers = {};
};

// One tensor of a layer, [num_blocks, ...] as KvLayout has it, with the page's step from block to
// block.
struct KvPageTensor {
  int64_t offset_bytes = 0;  // within each page
  KvTensorSpec spec = {};    // strides in elements of the layer's dtype
};

class KvPageLayout {
 public:
  // Tensors and pages begin at multiples of it.
  static constexpr int64_t kAlignmentBytes = 256;

  // Errors: InvalidArgument naming the layer and its field if `layers` is empty, if a field is out
  // of range or does not fit its form (as from KvLayout::Create()), if a layer shares with one that
  // is not earlier or not alike, if a group below the highest has no layer, or if the cache would
  // pass 2^62 bytes.
  static absl::StatusOr<KvPageLayout> Create(const KvPageLayoutOptions& options);

  const KvPageLayoutOptions& options() const { return options_; }
  int num_layers() const { return static_cast<int>(options_.layers.size()); }
  int num_groups() const { return static_cast<int>(group_bytes_.size()); }

  // Bytes of a page: those of the largest group.
  int64_t page_bytes() const { return page_bytes_; }
  // Bytes of a page that `group` uses. REQUIRES: 0 <= group < num_groups().
  int64_t group_bytes(int group) const;
  // Of the whole cache.
  int64_t bytes() const { return page_bytes_ * options_.num_blocks; }

  // The layer whose memory `layer` has: itself, or the first of the chain that it shares with.
  // REQUIRES, here and below: 0 <= layer < num_layers().
  int storage_layer(int layer) const;

  // k and v, or one of both: as KvLayout::tensors() of the layer's form.
  absl::Span<const KvPageTensor> tensors(int layer) const;

  // The layer over pages that begin at `pages`. Scales are 1.
  KvLayer MakeKvLayer(int layer, void* pages) const;

 private:
  KvPageLayout() = default;

  KvPageLayoutOptions options_;
  std::vector<KvLayout> layouts_;                   // [num_layers], each of that layer alone
  std::vector<std::vector<KvPageTensor>> tensors_;  // [num_layers]
  std::vector<int> storage_layers_;                 // [num_layers]
  std::vector<int64_t> group_bytes_;                // [num_groups]
  int64_t page_bytes_ = 0;
};

// The number of pages, null block included, in `budget_bytes`; options.num_blocks is ignored.
// Errors: InvalidArgument as from KvPageLayout::Create(), or if the budget holds fewer than two.
absl::StatusOr<int> NumBlocksForBytes(const KvPageLayoutOptions& options, int64_t budget_bytes);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_PAGE_LAYOUT_H_
