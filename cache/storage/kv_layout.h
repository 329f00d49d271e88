// The layout of a model's KV cache in memory: shapes, strides and bytes.
//
//   KvLayout layout = *KvLayout::Create({.num_layers = 32, .num_blocks = 4096, .block_size = 16,
//                                        .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128,
//                                        .dtype = DType::kBFloat16, .order = KvOrder::kHND});
//   // Per layer: memory for layout.tensors()[0] (k) and layout.tensors()[1] (v), then
//   KvLayer layer = layout.MakeKvLayer({{k, layout.tensors()[0].strides},
//                                       {v, layout.tensors()[1].strides}});
//
// Tensors of a layer. Indices are always (block, token, head, dim). `order` and `form` determine
// only the strides, except for K-packed, which has vLLM's shape:
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
// All layers may share one allocation per tensor, in one of two ways (`layers`):
//
//   apart          [num_layers, num_blocks, ...]: each layer is a separate cache
//   within block   NHD [num_blocks, num_layers, block_size, num_kv_heads, dim]: a block is
//                  contiguous, for transfers between caches. HND [num_blocks, num_kv_heads,
//                  num_layers, block_size, dim]: a head of a block is also contiguous, for
//                  transfers between ranks. K-packed is like NHD. (vLLM's num_layers dimension.)
//
// No LibTorch; owns no memory: KvCache (cache/storage/kv_cache.h) has the tensors. A value. Thread
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

// Returns the dtype of a cache from its name in options. "auto" is `model_dtype`; other names are
// as in base/dtype.h ("fp8" = "fp8_e4m3", "fp8_e5m2", "bfloat16", ...). Errors: InvalidArgument for
// any other name.
absl::StatusOr<DType> ParseKvCacheDType(std::string_view name, DType model_dtype);

// Whether v is a part of k, so that v need not be written separately.
constexpr bool IsLatent(const KvLayer& kv) { return kv.v.data == kv.k.data; }

struct KvLayoutOptions {
  int num_layers = 1;
  int num_blocks = 0;   // including the null block
  int block_size = 16;  // tokens per block; at least 1
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  DType dtype = DType::kFloat32;
  KvOrder order = KvOrder::kNHD;
  KvForm form = KvForm::kPair;
  KvLayers layers = KvLayers::kApart;
  // K-packed: number of adjacent dims of a head; 0: 16 / element size. An fp8 cache may have
  // another x, such as the 8 of 16-bit elements.
  int k_packed_x = 0;
};

// One tensor of a layer. Strides in elements.
struct KvTensorSpec {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// The memory of a layer's tensor, with the shape of the spec and any strides.
struct KvTensorRef {
  void* data = nullptr;
  absl::Span<const int64_t> strides;
};

class KvLayout {
 public:
  // Errors: InvalidArgument, naming the field, if an option is out of range, if a packed cache has
  // K and V of different sizes, if x of a K-packed cache does not divide head_dim_qk, if a latent
  // has several heads or head_dim_v > head_dim_qk, or if the cache would exceed 2^62 bytes.
  static absl::StatusOr<KvLayout> Create(const KvLayoutOptions& options);

  const KvLayoutOptions& options() const { return options_; }

  // The tensors of each layer: k and v, or one tensor for both.
  absl::Span<const KvTensorSpec> tensors() const { return tensors_; }

  // layer_stride(): number of elements between layers if all layers of tensors()[tensor] share one
  // allocation. allocation_elements(): number of elements of that allocation. With
  // KvLayers::kApart, layers begin at multiples of 256 bytes. REQUIRES: 0 <= tensor <
  // tensors().size().
  int64_t layer_stride(int tensor) const { return layer_strides_.at(tensor); }
  int64_t allocation_elements(int tensor) const { return allocation_elements_.at(tensor); }

  // Bytes of one block (K and V) over all layers.
  int64_t bytes_per_block() const { return bytes_per_block_; }
  // Bytes of the whole cache.
  int64_t bytes() const { return bytes_per_block_ * options_.num_blocks; }

  // Returns a layer with tensors at `refs`, in the order of tensors(). Scales are 1. REQUIRES: one
  // ref per tensor, with one stride per dimension; K-packed: the last stride of k is 1.
  KvLayer MakeKvLayer(absl::Span<const KvTensorRef> refs) const;

 private:
  explicit KvLayout(const KvLayoutOptions& options);

  KvLayoutOptions options_;
  std::vector<KvTensorSpec> tensors_;
  std::vector<int64_t> layer_strides_;        // [tensors_.size()]
  std::vector<int64_t> allocation_elements_;  // [tensors_.size()]
  int64_t bytes_per_block_ = 0;
};

// Returns the number of blocks, including the null block, that fit into `budget_bytes` over all
// layers. Ignores options.num_blocks. Errors: InvalidArgument as from KvLayout::Create(), or if the
// budget holds fewer than two blocks.
absl::StatusOr<int> NumBlocksForBytes(const KvLayoutOptions& options, int64_t budget_bytes);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_LAYOUT_H_
