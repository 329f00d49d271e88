// The flat storage of vLLM's PagedAttention: one tensor [2, num_blocks, block_size * num_kv_heads *
// head_dim] a layer, of which K and V are views in the K-packed layout (cache/storage/kv_layout.h).
//
//   KvLayout layout = *KvLayout::Create({.num_layers = 32, ..., .form = KvForm::kKPacked});
//   std::vector<std::vector<at::Tensor>> layers;
//   for (const at::Tensor& storage : engine_tensors) {
//     REPRISE_ASSIGN_OR_RETURN(layers.emplace_back(), SplitKPackedStorage(layout, storage));
//   }
//   absl::StatusOr<KvCache> cache = KvCache::Wrap(layout, std::move(layers));

#ifndef CACHE_STORAGE_K_PACKED_STORAGE_H_
#define CACHE_STORAGE_K_PACKED_STORAGE_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "cache/storage/kv_layout.h"

namespace reprise {

// The tensors of a layer, k and v, as views of `storage`, which may be of the layout's dtype or,
// for fp8, uint8.
// Errors: InvalidArgument unless the layout is K-packed with head_dim_qk == head_dim_v, and storage
// is [2, num_blocks, block_size * num_kv_heads * head_dim] with contiguous blocks.
absl::StatusOr<std::vector<at::Tensor>> SplitKPackedStorage(const KvLayout& layout,
                                                            const at::Tensor& storage);

}  // namespace reprise

#endif  // CACHE_STORAGE_K_PACKED_STORAGE_H_
