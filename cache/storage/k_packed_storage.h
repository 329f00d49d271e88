// The flat storage of vLLM's PagedAttention: one tensor [2, num_blocks, block_size * num_kv_heads *
// head_dim] a layer, of which K and V are views in the K-packed layout (cache/storage/kv_layout.h).
//
//   KvLayout layout = *KvLayout::Create({.num_layers = 32, ..., .form = KvForm::kKPacked});
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int64_t> shape, KPackedStorageShape(layout));
//   // An engine allocates a tensor of that shape a layer: engine_tensors.
//   std::vector<std::vector<at::Tensor>> layers;
//   for (const at::Tensor& storage : engine_tensors) {
//     REPRISE_ASSIGN_OR_RETURN(layers.emplace_back(), SplitKPackedStorage(layout, storage));
//   }
//   absl::StatusOr<KvCache> cache = KvCache::Wrap(layout, std::move(layers));

#ifndef REPRISE_CACHE_STORAGE_K_PACKED_STORAGE_H_
#define REPRISE_CACHE_STORAGE_K_PACKED_STORAGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {

// The shape of a layer's storage, [2, num_blocks, block_size * num_kv_heads * head_dim]: what
// vLLM's PagedAttention.get_kv_cache_shape() returns.
// Errors: InvalidArgument unless the layout is K-packed with head_dim_qk == head_dim_v.
absl::StatusOr<std::vector<int64_t>> KPackedStorageShape(const KvLayout& layout);

// The tensors of a layer, k and v, as views of `storage`, which may be of the layout's dtype or,
// for fp8, uint8.
// Errors: those of KPackedStorageShape(); InvalidArgument unless storage has that shape, with
// contiguous blocks.
absl::StatusOr<std::vector<at::Tensor>> SplitKPackedStorage(const KvLayout& layout,
                                                            const at::Tensor& storage);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_K_PACKED_STORAGE_H_
