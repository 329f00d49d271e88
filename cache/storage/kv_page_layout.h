// The layout of layers with different shapes in one pool of pages: groups with separate block
// tables (cache/kv_group.h), different heads and dims, latents, and layers that share their keys.
//
//   // Gemma-like: 2 layers with a window (group 0), one with full attention (group 1).
//   KvPageLayout layout = *KvPageLayout::Create(
//       {.num_blocks = 4096,
//        .layers = {{.group = 0, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128},
//                   {.group = 0, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128},
//                   {.group = 1, .num_kv_heads = 4, .head_dim_qk = 256, .head_dim_v = 256}}});
//   KvCache cache = *KvCache::Create(layout, at::Device(at::kCUDA, 0));
//
// There is one buffer of num_blocks pages; block id b of any group is page b. A page holds one
// block of all layers of one group, the group for which the block was allocated. Groups therefore
// share the memory of pages:
//
//   page b   | layer 0: k | v | layer 1: k | v |        |    as a block of group 0
//            | layer 2: k          | v         | unused |    as a block of group 1
//
// page_bytes is the size of the largest group. Each tensor of a layer is at a fixed offset within
// the page. Offsets and pages are aligned to 256 bytes. The strides within a block are as in a
// KvLayout of this one layer (cache/storage/kv_layout.h); the stride between blocks is the page. If
// a model has only one group, a page holds all layers.
//
// A layer that shares the keys of an earlier layer has the same offset and group.
//
// No LibTorch; owns no memory: KvCache (cache/storage/kv_cache.h) has the tensors. A value. Thread
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

// The shape of the keys and values of a layer.
struct KvPageLayer {
  int group = 0;
  // An earlier layer whose memory this layer reads; this layer writes nothing. All other fields
  // must equal the fields of that layer.
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
  int num_blocks = 0;   // number of pages, including the null block
  int block_size = 16;  // tokens per block, in all groups; at least 1
  std::vector<KvPageLayer> layers = {};
};

// One tensor of a layer, [num_blocks, ...] as in KvLayout, with a page as the stride between
// blocks.
struct KvPageTensor {
  int64_t offset_bytes = 0;  // within each page
  KvTensorSpec spec = {};    // strides in elements of the layer's dtype
};

class KvPageLayout {
 public:
  // Alignment of tensors and pages.
  static constexpr int64_t kAlignmentBytes = 256;

  // Errors: InvalidArgument, naming the layer and its field, for one of these:
  //   - `layers` is empty.
  //   - A field is out of range or does not fit its form (as in KvLayout::Create()).
  //   - A layer shares with a layer that is not earlier or has other fields.
  //   - A group below the highest has no layer.
  //   - The cache would exceed 2^62 bytes.
  static absl::StatusOr<KvPageLayout> Create(const KvPageLayoutOptions& options);

  const KvPageLayoutOptions& options() const { return options_; }
  int num_layers() const { return static_cast<int>(options_.layers.size()); }
  int num_groups() const { return static_cast<int>(group_bytes_.size()); }

  // Bytes of a page, which is the size of the largest group.
  int64_t page_bytes() const { return page_bytes_; }
  // Bytes of a page that `group` uses. REQUIRES: 0 <= group < num_groups().
  int64_t group_bytes(int group) const;
  // Bytes of the whole cache.
  int64_t bytes() const { return page_bytes_ * options_.num_blocks; }

  // The layer whose memory `layer` uses: itself, or the first layer of its sharing chain. REQUIRES,
  // here and below: 0 <= layer < num_layers().
  int storage_layer(int layer) const;

  // k and v, or one tensor for both, as in KvLayout::tensors().
  absl::Span<const KvPageTensor> tensors(int layer) const;

  // Returns the layer over pages that begin at `pages`. Scales are 1.
  KvLayer MakeKvLayer(int layer, void* pages) const;

 private:
  KvPageLayout() = default;

  KvPageLayoutOptions options_;
  std::vector<KvLayout> layouts_;                   // a layout per layer
  std::vector<std::vector<KvPageTensor>> tensors_;  // [num_layers]
  std::vector<int> storage_layers_;                 // [num_layers]
  std::vector<int64_t> group_bytes_;                // [num_groups]
  int64_t page_bytes_ = 0;
};

// Returns the number of pages, including the null block, that fit into `budget_bytes`. Ignores
// options.num_blocks. Errors: InvalidArgument as from KvPageLayout::Create(), or if the budget
// holds fewer than two pages.
absl::StatusOr<int> NumBlocksForBytes(const KvPageLayoutOptions& options, int64_t budget_bytes);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_PAGE_LAYOUT_H_
