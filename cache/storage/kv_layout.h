// The layout of a model's keys and values in memory: shapes, strides and bytes.
//
//   KvLayout layout = *KvLayout::Create({.num_layers = 32, .num_blocks = 4096, .block_size = 16,
//                                        .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128,
//                                        .dtype = DType::kBFloat16, .order = KvOrder::kHND});
//   // Once a layer: memory of layout.tensors()[0] for k and of layout.tensors()[1] for v, then
//   KvLayer layer = layout.MakeKvLayer({{k, layout.tensors()[0].strides},
//                                       {v, layout.tensors()[1].strides}});
//
// Tensors of a layer. Indices are always (block, token, head, dim); `order` and `form` decide the
// strides only, except in K-packed, whose shape is vLLM's:
//
//   form      tensors
//   pair      k [num_blocks, block_size, num_kv_heads, head_dim_qk], v [.., head_dim_v]
//   packed    kv [num_blocks, 2, block_size, num_kv_heads, head_dim]; head_dim_qk == head_dim_v
//   diffkv    kv [num_blocks, block_size, num_kv_heads, head_dim_qk + head_dim_v]
//   K-packed  k [num_blocks, num_kv_heads, head_dim_qk / x, block_size, x], x = k_packed_x
//             v [num_blocks, num_kv_heads, head_dim_v, block_size]; `order` is not used
//   latent    k [num_blocks, block_size, 1, head_dim_qk]; v is its first head_dim_v dims (MLA)
//
//   order     a block in memory
//   NHD       token by token: [block_size, num_kv_heads, dim]
//   HND       head by head:   [num_kv_heads, block_size, dim]
//
// All layers of a tensor may share one allocation, in one of two ways (`layers`):
//
//   apart          [num_layers, num_blocks, ...]: a layer is a cache of its own
//   within block   NHD [num_blocks, num_layers, block_size, num_kv_heads, dim]: a block is one
//                  piece, as moves between caches need it; HND [num_blocks, num_kv_heads,
//                  num_layers, block_size, dim]: a head of a block is one piece too, as moves
//                  between ranks need it. K-packed is as NHD. (vLLM's num_layers dimension.)
//
// No LibTorch and no storage: KvCache (cache/storage/kv_cache.h) has the tensors. A value; thread
// safety: const.

#ifndef REPRISE_CACHE_STORAGE_KV_LAYOUT_H_
#define REPRISE_CACHE_STORAGE_KV_LAYOUT_H_

#include <cstdint>
#include <ostream>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

enum class KvOrder : int8_t { kNHD, kHND };

enum class KvForm : int8_t { kPair, kPacked, kDiffKv, kKPacked, kLatent };

enum class KvLayers : int8_t { kApart, kWithinBlock };

// "NHD", "HND".
std::string_view KvOrderName(KvOrder order);
inline std::ostream& operator<<(std::ostream& out, KvOrder order) {
  return out << KvOrderName(order);
}

// Errors: InvalidArgument for any other name.
absl::StatusOr<KvOrder> ParseKvOrder(std::string_view name);

// "pair", "packed", "diffkv", "K-packed", "latent".
std::string_view KvFormName(KvForm form);
inline std::ostream& operator<<(std::ostream& out, KvForm form) { return out << KvFormName(form); }

// "apart", "within block".
std::string_view KvLayersName(KvLayers layers);
inline std::ostream& operator<<(std::ostream& out, KvLayers layers) {
  return out << KvLayersName(layers);
}

// The dtype of a cache by its name in options: "auto" is `model_dtype`, other names are those of
// base/dtype.h ("fp8" = "fp8_e4m3", "fp8_e5m2", "bfloat16", ...).
// Errors: InvalidArgument for any other name.
absl::StatusOr<DType> ParseKvCacheDType(std::string_view name, DType model_dtype);

// Whether v is a part of k, and so needs no writes of its own.
constexpr bool IsLatent(const KvLayer& kv) { return kv.v.data == kv.k.data; }

struct KvLayoutOptions {
  int num_layers = 1;
  int num_blocks = 0;   // the null block included
  int block_size = 16;  // tokens a block; any from 1
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  DType dtype = DType::kFloat32;
  KvOrder order = KvOrder::kNHD;
  KvForm form = KvForm::kPair;
  KvLayers layers = KvLayers::kApart;
  // K-packed: the dims of a head that are together; 0: 16 / element size. vLLM takes x from the
  // model's dtype, so its caches of bytes have 8 for models of 16 bits.
  int k_packed_x = 0;
};

// One tensor of a layer. Strides in elements.
struct KvTensorSpec {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// The memory of a layer's tensor: of the spec's shape, with strides of its own.
struct KvTensorRef {
  void* data = nullptr;
  absl::Span<const int64_t> strides;
};

class KvLayout {
 public:
  // Errors: InvalidArgument naming the field if it is out of range, if a packed cache has K and V
  // of different size, if x of a K-packed cache does not divide head_dim_qk, if a latent has
  // several heads or head_dim_v above head_dim_qk, or if the cache would pass 2^62 bytes.
  static absl::StatusOr<KvLayout> Create(const KvLayoutOptions& options);

  const KvLayoutOptions& options() const { return options_; }

  // The tensors of each layer: k and v, or one of both.
  absl::Span<const KvTensorSpec> tensors() const { return tensors_; }

  // Elements from a layer to the next in one allocation of tensors()[tensor] of all layers, and
  // elements of all of it. Layers apart begin at multiples of 256 bytes.
  // REQUIRES: 0 <= tensor < tensors().size().
  int64_t layer_stride(int tensor) const { return layer_strides_.at(tensor); }
  int64_t allocation_elements(int tensor) const { return allocation_elements_.at(tensor); }

  // Of one block, K and V, in all layers.
  int64_t bytes_per_block() const { return bytes_per_block_; }
  // Of the whole cache.
  int64_t bytes() const { return bytes_per_block_ * options_.num_blocks; }

  // A layer whose tensors are at `refs`, in the order of tensors(). Scales are 1.
  // REQUIRES: one ref for each tensor, with as many strides as it has dimensions; K-packed: the
  // last stride of k is 1.
  KvLayer MakeKvLayer(absl::Span<const KvTensorRef> refs) const;

 private:
  explicit KvLayout(const KvLayoutOptions& options);

  KvLayoutOptions options_;
  std::vector<KvTensorSpec> tensors_;
  std::vector<int64_t> layer_strides_;        // [tensors_.size()]
  std::vector<int64_t> allocation_elements_;  // [tensors_.size()]
  int64_t bytes_per_block_ = 0;
};

// The number of blocks, null block included, that fit into `budget_bytes` over all layers;
// options.num_blocks is ignored.
// Errors: InvalidArgument as from KvLayout::Create(), or if the budget holds fewer than two blocks.
absl::StatusOr<int> NumBlocksForBytes(const KvLayoutOptions& options, int64_t budget_bytes);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_LAYOUT_H_
