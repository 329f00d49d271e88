#include "reprise/cache/storage/kv_page_layout.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Small enough that offsets within a cache never overflow int64.
constexpr int64_t kMaxBytes = int64_t{1} << 62;

int64_t Aligned(int64_t bytes) {
  constexpr int64_t kUnit = KvPageLayout::kAlignmentBytes;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

absl::Status AtLayer(int layer, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("layer ", layer, ": ", status.message()));
}

absl::Status TooLarge() {
  return absl::InvalidArgumentError("the cache is too large: expected at most 2^62 bytes");
}

// Returns the layout of a cache with only this layer.
absl::StatusOr<KvLayout> LayoutOf(const KvPageLayer& layer, int num_blocks, int block_size) {
  return KvLayout::Create({.num_layers = 1,
                           .num_blocks = num_blocks,
                           .block_size = block_size,
                           .num_kv_heads = layer.num_kv_heads,
                           .head_dim_qk = layer.head_dim_qk,
                           .head_dim_v = layer.head_dim_v,
                           .dtype = layer.dtype,
                           .order = layer.order,
                           .form = layer.form});
}

absl::Status CheckSharing(absl::Span<const KvPageLayer> layers, int layer) {
  const int source = *layers[layer].shares_with;
  if (source < 0 || source >= layer) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, ": shares_with must be an earlier layer: expected 0 to ",
                     layer - 1, ", got ", source));
  }
  KvPageLayer alike = layers[layer];
  alike.shares_with = layers[source].shares_with;
  if (alike == layers[source]) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer,
                   ": shares_with must name a layer of the same group, heads, dims, "
                   "dtype, order and form: got layer ",
                   source));
}

}  // namespace

absl::StatusOr<KvPageLayout> KvPageLayout::Create(const KvPageLayoutOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layers", static_cast<int64_t>(options.layers.size()), 1));
  KvPageLayout layout;
  layout.options_ = options;
  const int num_layers = layout.num_layers();
  for (int layer = 0; layer < num_layers; ++layer) {
    const KvPageLayer& of = options.layers[layer];
    if (of.group < 0 || of.group >= num_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, ": group must be numbered from 0: expected 0 to ",
                       num_layers - 1, ", got ", of.group));
    }
    absl::StatusOr<KvLayout> alone = LayoutOf(of, options.num_blocks, options.block_size);
    if (!alone.ok()) return AtLayer(layer, alone.status());
    if (of.shares_with.has_value()) {
      REPRISE_RETURN_IF_ERROR(CheckSharing(options.layers, layer));
      layout.storage_layers_.push_back(layout.storage_layers_[*of.shares_with]);
      layout.tensors_.push_back(layout.tensors_[*of.shares_with]);
    } else {
      layout.storage_layers_.push_back(layer);
      if (of.group >= layout.num_groups()) layout.group_bytes_.resize(of.group + 1, 0);
      int64_t& end = layout.group_bytes_[of.group];
      std::vector<KvPageTensor> tensors;
      for (const KvTensorSpec& spec : alone->tensors()) {
        tensors.push_back({.offset_bytes = end, .spec = spec});
        // The outermost stride is one block of this tensor.
        const int64_t block_bytes = spec.strides[0] * SizeOf(of.dtype);
        if (block_bytes > kMaxBytes - kAlignmentBytes - end) return TooLarge();
        end = Aligned(end + block_bytes);
      }
      layout.tensors_.push_back(std::move(tensors));
    }
    layout.layouts_.push_back(*std::move(alone));
  }
  for (int group = 0; group < layout.num_groups(); ++group) {
    if (layout.group_bytes_[group] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "groups must be numbered without gaps: expected a layer of group ", group, ", got none"));
  }
  layout.page_bytes_ = *std::max_element(layout.group_bytes_.begin(), layout.group_bytes_.end());
  if (options.num_blocks > kMaxBytes / layout.page_bytes_) return TooLarge();
  for (int layer = 0; layer < num_layers; ++layer) {
    for (KvPageTensor& tensor : layout.tensors_[layer]) {
      tensor.spec.strides[0] = layout.page_bytes_ / SizeOf(options.layers[layer].dtype);
    }
  }
  return layout;
}

int64_t KvPageLayout::group_bytes(int group) const {
  CHECK(group >= 0 && group < num_groups()) << "group " << group << " of " << num_groups();
  return group_bytes_[group];
}

int KvPageLayout::storage_layer(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return storage_layers_[layer];
}

absl::Span<const KvPageTensor> KvPageLayout::tensors(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return tensors_[layer];
}

KvLayer KvPageLayout::MakeKvLayer(int layer, void* pages) const {
  std::vector<KvTensorRef> refs;
  for (const KvPageTensor& tensor : tensors(layer)) {
    refs.push_back(
        {.data = static_cast<char*>(pages) + tensor.offset_bytes, .strides = tensor.spec.strides});
  }
  return layouts_[layer].MakeKvLayer(refs);
}

absl::StatusOr<int> NumBlocksForBytes(const KvPageLayoutOptions& options, int64_t budget_bytes) {
  KvPageLayoutOptions one_block = options;
  one_block.num_blocks = 1;
  REPRISE_ASSIGN_OR_RETURN(const KvPageLayout layout, KvPageLayout::Create(one_block));
  const int64_t num_blocks = budget_bytes / layout.page_bytes();
  if (num_blocks < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("budget_bytes must hold the null block and one more: expected at least ",
                     2 * layout.page_bytes(), ", got ", budget_bytes));
  }
  return static_cast<int>(std::min<int64_t>(num_blocks, std::numeric_limits<int>::max()));
}

}  // namespace reprise
