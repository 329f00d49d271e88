// The tensors that hold the keys and values of all layers, on one device.
//
//   KvLayout layout = *KvLayout::Create({...});          // equal layers
//   KvPageLayout layout = *KvPageLayout::Create({...});  // groups of different layers
//   absl::StatusOr<KvCache> cache = KvCache::Create(layout, at::Device(at::kCUDA, 0));
//   REPRISE_RETURN_IF_ERROR(WriteKv(cache->layer(0), k, v, slot_mapping));
//
// An engine that has cache tensors already wraps them, with any strides; layers may share tensors.
//
// A layer may share the keys of an earlier layer. Both have the same memory and scales, and the
// later one must not be written: check shares_with() before writing.
//
// Ownership: the cache keeps its tensors alive; its KvLayers point into them and are valid as long
// as the cache, or a copy of the tensors, lives. Addresses never change. Thread safety: none for
// Fill() and SetScales(), const otherwise; callers order their accesses to the memory.

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
  // Allocates tensors of `layout` on `device`: all layers of a kind in one allocation, each layer
  // aligned to 256 bytes. The content is undefined, also that of the null block.
  //
  // `storage_layers`: layer l of the cache has the memory of layer storage_layers[l] of the layout;
  // empty: each has its own. The first that names a layer of the layout writes it, later ones share
  // with that one: {0, 1, 0, 1} are four layers over two.
  // Errors: ResourceExhausted if the device has too little memory; Internal if it does not answer;
  // InvalidArgument if storage_layers names no layer of the layout.
  static absl::StatusOr<KvCache> Create(const KvLayout& layout, at::Device device,
                                        absl::Span<const int> storage_layers = {});

  // The same over pages, in one allocation.
  static absl::StatusOr<KvCache> Create(const KvPageLayout& layout, at::Device device);

  // Takes the caller's tensors: for each layer those of layout.tensors(), in that order, of that
  // shape, with any strides under which no two elements overlap (K-packed: the last one of k is 1).
  // fp8 tensors may be uint8; latents may be [num_blocks, block_size, head_dim_qk]. A layer whose
  // tensors are those of an earlier one shares with it.
  // Errors: InvalidArgument naming layer and tensor: number, layout (sparse, nested), shape, dtype,
  // device or strides; Internal if LibTorch refuses an address.
  static absl::StatusOr<KvCache> Wrap(const KvLayout& layout,
                                      std::vector<std::vector<at::Tensor>> layers);

  at::Device device() const { return device_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  int num_blocks() const { return layers_[0].num_blocks; }
  int block_size() const { return layers_[0].block_size; }
  // Bytes of a block in all layers: a page, if the cache has pages.
  int64_t bytes_per_block() const { return bytes_per_block_; }

  // REQUIRES: 0 <= layer < num_layers().
  const KvLayer& layer(int layer) const;
  absl::Span<const KvLayer> layers() const { return layers_; }

  // The tensors of a layer, in the order of the layout's. REQUIRES: as layer().
  absl::Span<const at::Tensor> tensors(int layer) const;

  // The group of a layer; 0 without pages. REQUIRES: as layer().
  int group(int layer) const;

  // The first layer with the same memory; nullopt if the layer has its own.
  // REQUIRES: as layer().
  std::optional<int> shares_with(int layer) const;

  // Sets the scales that writing divides by and reading multiplies with, for the layer and all
  // layers with its memory. Pointers are on the cache's device and must outlive its use. KvLayers
  // returned before do not change. REQUIRES: as layer().
  void SetScales(int layer, const Scale& k_scale, const Scale& v_scale);

  // Sets every element, also of the null block. NaN reveals reads of elements that were never
  // written. (If pages hold layers of several dtypes, the last group determines the bytes.)
  // Errors: Internal if LibTorch fails.
  absl::Status Fill(float value) const;

  // Bytes of the cache: bytes_per_block() of each block.
  int64_t bytes() const { return bytes_per_block() * num_blocks(); }

 private:
  KvCache() = default;
  // Layers of `layout` over their tensors.
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
