// The tensors that hold the keys and values of all layers, on one device.
//
//   KvLayout layout = *KvLayout::Create({...});
//   absl::StatusOr<KvCache> cache = KvCache::Create(layout, at::Device(at::kCUDA, 0));
//   REPRISE_RETURN_IF_ERROR(WriteKv(cache->layer(0), k, v, slot_mapping));
//
// An engine that has cache tensors already wraps them: any strides will do, and layers may share
// tensors.
//
// Ownership: the cache keeps its tensors alive; the KvLayers that it gives point into them and are
// valid as long as the cache, or a copy of the tensors, lives. Addresses never change. Thread
// safety: none for Fill() and SetScales(), const otherwise; memory is written by whoever has a
// KvLayer.

#ifndef CACHE_KV_CACHE_H_
#define CACHE_KV_CACHE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/kv_layer.h"
#include "cache/kv_layout.h"

namespace reprise {

class KvCache {
 public:
  // Allocates tensors of `layout` on `device`: all layers of a kind in one allocation, each layer
  // aligned to 256 bytes. Content is undefined, the null block's too: no kernel may depend on it.
  // Errors: ResourceExhausted if the device has too little memory; Internal if it does not answer.
  static absl::StatusOr<KvCache> Create(const KvLayout& layout, at::Device device);

  // Takes the caller's tensors: for each layer those of layout.tensors(), in that order, of that
  // shape, with any strides under which no two elements overlap (K-packed: the last one of k is 1).
  // fp8 tensors may be uint8.
  // Errors: InvalidArgument naming layer and tensor: number, shape, dtype, device or strides.
  static absl::StatusOr<KvCache> Wrap(const KvLayout& layout,
                                      std::vector<std::vector<at::Tensor>> layers);

  const KvLayout& layout() const { return layout_; }
  at::Device device() const { return device_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }

  // REQUIRES: 0 <= layer < num_layers().
  const KvLayer& layer(int layer) const;
  absl::Span<const KvLayer> layers() const { return layers_; }

  // The tensors of a layer, in the order of layout().tensors(). REQUIRES: as layer().
  absl::Span<const at::Tensor> tensors(int layer) const;

  // Sets what writing divides by and reading multiplies with. Pointers are on the cache's device
  // and must outlive its use. KvLayers given before do not change. REQUIRES: as layer().
  void SetScales(int layer, const Scale& k_scale, const Scale& v_scale);

  // Sets every element, the null block's too. NaN shows reads of what was never written.
  // Errors: Internal if LibTorch fails.
  absl::Status Fill(float value);

  // Bytes of all tensors, shared ones counted once a layer.
  int64_t bytes() const;

 private:
  KvCache(const KvLayout& layout, std::vector<std::vector<at::Tensor>> tensors);

  KvLayout layout_;
  at::Device device_;
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<KvLayer> layers_;
};

}  // namespace reprise

#endif  // CACHE_KV_CACHE_H_
