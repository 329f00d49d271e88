// The flat storage of vLLM's PagedAttention: one tensor [2, num_blocks, block_size * num_kv_heads *
// head_dim] per layer. K and V are views of it in the K-packed layout (cache/storage/kv_layout.h).
//
//   KvLayout layout = *KvLayout::Create({.num_layers = 32, ..., .form = KvForm::kKPacked});
//   REPRISE_ASSIGN_OR_RETURN(std::vector<int64_t> shape, KPackedStorageShape(layout));
//   // An engine allocates one tensor of that shape per layer: engine_tensors.
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

// Returns the shape of a layer's storage, [2, num_blocks, block_size * num_kv_heads * head_dim], as
// vLLM's PagedAttention.get_kv_cache_shape() does. Errors: InvalidArgument unless the layout is
// K-packed with head_dim_qk == head_dim_v.
absl::StatusOr<std::vector<int64_t>> KPackedStorageShape(const KvLayout& layout);

// Returns the tensors k and v of a layer as views of `storage`. `storage` has the layout's dtype
// or, for fp8, uint8. Errors: as KPackedStorageShape(); InvalidArgument unless `storage` has that
// shape and contiguous blocks.
absl::StatusOr<std::vector<at::Tensor>> SplitKPackedStorage(const KvLayout& layout,
                                                            const at::Tensor& storage);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_K_PACKED_STORAGE_H_
