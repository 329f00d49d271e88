// The tensors that hold the keys and values of all layers, on one device.
//
//   KvLayout layout = *KvLayout::Create({...});          // equal layers
//   KvPageLayout layout = *KvPageLayout::Create({...});  // groups of different layers
//   absl::StatusOr<KvCache> cache = KvCache::Create(layout, at::Device(at::kCUDA, 0));
//   REPRISE_RETURN_IF_ERROR(WriteKv(cache->layer(0), k, v, slot_mapping));
//
// An engine with existing cache tensors wraps them, with any strides. Layers may share tensors.
//
// A layer may share the keys of an earlier layer. Both layers then have the same memory and scales,
// and the later layer must not be written: check shares_with() before writing.
//
// Ownership: the cache keeps its tensors alive. Its KvLayers point into the tensors and are valid
// as long as the cache, or a copy of the tensors, exists. Addresses never change. Thread safety:
// Fill() and SetScales() are not thread-safe; other functions are const. Callers order their
// accesses to the memory.

#ifndef REPRISE_CACHE_STORAGE_KV_CACHE_H_
#define REPRISE_CACHE_STORAGE_KV_CACHE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/storage/kv_page_layout.h"

namespace reprise {

class KvCache {
 public:
  // Allocates tensors of `layout` on `device`: each tensor of all layers in one allocation. With
  // KvLayers::kApart, each layer is aligned to 256 bytes. The content is undefined, including the
  // null block.
  //
  // `storage_layers`: layer l of the cache uses the memory of layer storage_layers[l] of the
  // layout. Empty: each layer has separate memory. The first cache layer that names a layer of the
  // layout writes it, and later ones share it: {0, 1, 0, 1} are four layers over two. Errors:
  // ResourceExhausted if the device has too little memory; Internal if the device fails;
  // InvalidArgument if an entry of storage_layers is not a layer of the layout.
  static absl::StatusOr<KvCache> Create(const KvLayout& layout, at::Device device,
                                        absl::Span<const int> storage_layers = {});

  // Like Create() above, over pages in one allocation.
  static absl::StatusOr<KvCache> Create(const KvPageLayout& layout, at::Device device);

  // Wraps the caller's tensors. layers[l] has the tensors of layout.tensors(), in the same order
  // and with the same shapes. Any strides are allowed if no two elements overlap (K-packed: the
  // last stride of k must be 1). fp8 tensors may be uint8. Latents may be [num_blocks, block_size,
  // head_dim_qk]. A layer with the tensors of an earlier layer shares its memory. Errors:
  // InvalidArgument, naming layer and tensor, for a wrong number, layout (sparse, nested), shape,
  // dtype, device or strides; Internal if LibTorch rejects an address.
  static absl::StatusOr<KvCache> Wrap(const KvLayout& layout,
                                      std::vector<std::vector<at::Tensor>> layers);

  at::Device device() const { return device_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_blocks() const { return layers_[0].num_blocks; }
  int block_size() const { return layers_[0].block_size; }
  // Bytes of a block over all layers of the layout. With pages, the size of a page.
  int64_t bytes_per_block() const { return bytes_per_block_; }

  // REQUIRES: 0 <= layer < num_layers().
  const KvLayer& layer(int layer) const;
  absl::Span<const KvLayer> layers() const { return layers_; }

  // The tensors of a layer, in the order of layout.tensors(). REQUIRES: as layer().
  absl::Span<const at::Tensor> tensors(int layer) const;

  // The group of a layer; 0 without pages. REQUIRES: as layer().
  int group(int layer) const;

  // The first layer with the same memory, or nullopt if the layer has separate memory. REQUIRES: as
  // layer().
  std::optional<int> shares_with(int layer) const;

  // Sets the scales of the layer and of all layers with the same memory. Writing divides by the
  // scale, reading multiplies. Pointers must be on the cache's device and outlive their use.
  // KvLayers that were returned before do not change. REQUIRES: as layer().
  void SetScales(int layer, const Scale& k_scale, const Scale& v_scale);

  // Sets every element, including the null block, to `value`. NaN reveals reads of elements that
  // were never written. (In pages of several groups, the last layer determines the bytes; NaN sets
  // all bits.) Errors: Internal if LibTorch fails.
  absl::Status Fill(float value) const;

  // Bytes of the cache: bytes_per_block() * num_blocks().
  int64_t bytes() const { return bytes_per_block() * num_blocks(); }

 private:
  KvCache() = default;
  // Builds the layers of `layout` over their tensors.
  KvCache(const KvLayout& layout, std::vector<std::vector<at::Tensor>> tensors);
  // Fills shares_with_ from the layers' addresses.
  void FindSharing();

  at::Device device_ = at::kCPU;
  std::vector<std::vector<at::Tensor>> tensors_;  // [num_layers]
  std::vector<KvLayer> layers_;
  std::vector<int> groups_;                      // [num_layers]
  std::vector<std::optional<int>> shares_with_;  // [num_layers]
  int64_t bytes_per_block_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_CACHE_H_
