#include "reprise/cache/storage/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

// Returns true if no two elements share memory: each dimension's stride is at least the span of the
// dimensions with smaller strides. Returns false for some interleavings that do not overlap; no
// cache has such strides.
bool HasDistinctElements(const at::Tensor& tensor) {
  std::vector<int> dims(tensor.dim());
  std::iota(dims.begin(), dims.end(), 0);
  std::sort(dims.begin(), dims.end(),
            [&](int a, int b) { return tensor.stride(a) < tensor.stride(b); });
  int64_t span = 1;
  for (int dim : dims) {
    if (tensor.size(dim) <= 1) continue;
    if (tensor.stride(dim) < span) return false;
    span += tensor.stride(dim) * (tensor.size(dim) - 1);
  }
  return true;
}

// Checks that the tensor is defined and strided.
absl::Status CheckStrided(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is missing: expected a tensor, got an undefined one"));
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    std::ostringstream layout;
    layout << tensor.layout() << (tensor.is_nested() ? ", nested" : "");
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be strided: expected layout Strided, got ", layout.str()));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const std::string& name, const at::Tensor& tensor,
                         const KvTensorSpec& spec, DType dtype, at::Device device) {
  const absl::Span<const int64_t> shape(tensor.sizes().data(), tensor.sizes().size());
  if (shape != absl::MakeConstSpan(spec.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has the wrong shape: expected [",
                                                   absl::StrJoin(spec.shape, ", "), "], got [",
                                                   absl::StrJoin(shape, ", "), "]"));
  }
  if (FromScalarType(tensor.scalar_type()) != dtype &&
      !(IsFp8(dtype) && tensor.scalar_type() == at::kByte)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " has the wrong dtype: expected ", c10::getDtypeNames(ToScalarType(dtype)).first,
        ", got ", c10::getDtypeNames(tensor.scalar_type()).first));
  }
  if (tensor.device() != device) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has the wrong device: expected ",
                                                   device.str(), ", got ", tensor.device().str()));
  }
  if (!HasDistinctElements(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must not overlap itself: got shape [",
                                                   absl::StrJoin(shape, ", "), "] with strides [",
                                                   absl::StrJoin(tensor.strides(), ", "), "]"));
  }
  return absl::OkStatus();
}

// Checks the caller's tensors, and replaces them with views of the layout's shape and dtype.
absl::Status CheckLayers(const KvLayout& layout, std::vector<std::vector<at::Tensor>>& layers) {
  const KvLayoutOptions& options = layout.options();
  if (static_cast<int>(layers.size()) != options.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers must have one entry per layer of the layout: expected ",
                     options.num_layers, ", got ", layers.size()));
  }
  std::optional<at::Device> device;
  for (int layer = 0; layer < options.num_layers; ++layer) {
    if (layers[layer].size() != layout.tensors().size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, " must have as many tensors as the layout: expected ",
                       layout.tensors().size(), ", got ", layers[layer].size()));
    }
    for (size_t i = 0; i < layers[layer].size(); ++i) {
      at::Tensor& tensor = layers[layer][i];
      const std::string name = absl::StrCat("tensor ", i, " of layer ", layer);
      REPRISE_RETURN_IF_ERROR(CheckStrided(name, tensor));
      if (!device.has_value()) device = tensor.device();
      if (options.form == KvForm::kLatent && tensor.dim() == 3) tensor = tensor.unsqueeze(2);
      REPRISE_RETURN_IF_ERROR(
          CheckTensor(name, tensor, layout.tensors()[i], options.dtype, *device));
      if (options.form == KvForm::kKPacked && i == 0 && tensor.strides().back() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " must have stride 1 in its last dimension: expected 1, got ",
                         tensor.strides().back()));
      }
      if (tensor.scalar_type() == at::kByte) tensor = tensor.view(ToScalarType(options.dtype));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KvCache> KvCache::Create(const KvLayout& layout, at::Device device,
                                        absl::Span<const int> storage_layers) {
  const int num_stored = layout.options().num_layers;
  std::vector<int> storage(storage_layers.begin(), storage_layers.end());
  if (storage.empty()) {
    storage.resize(num_stored);
    std::iota(storage.begin(), storage.end(), 0);
  }
  for (size_t layer = 0; layer < storage.size(); ++layer) {
    if (storage[layer] >= 0 && storage[layer] < num_stored) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("storage_layers[", layer, "] must be a layer of the layout: expected 0 to ",
                     num_stored - 1, ", got ", storage[layer]));
  }
  return CatchTorchOr([&]() -> absl::StatusOr<KvCache> {
    std::vector<std::vector<at::Tensor>> tensors(storage.size());
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const KvTensorSpec& spec = layout.tensors()[i];
      const at::ScalarType dtype = ToScalarType(layout.options().dtype);
      const at::Tensor all = at::empty({layout.allocation_elements(static_cast<int>(i))},
                                       at::TensorOptions().dtype(dtype).device(device));
      for (size_t layer = 0; layer < storage.size(); ++layer) {
        const int64_t offset = storage[layer] * layout.layer_stride(static_cast<int>(i));
        tensors[layer].push_back(all.as_strided(spec.shape, spec.strides, offset));
      }
    }
    return KvCache(layout, std::move(tensors));
  });
}

absl::StatusOr<KvCache> KvCache::Create(const KvPageLayout& layout, at::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<KvCache> {
    KvCache cache;
    cache.device_ = device;
    cache.bytes_per_block_ = layout.page_bytes();
    const at::Tensor pages =
        at::empty({layout.bytes()}, at::TensorOptions().dtype(at::kByte).device(device));
    cache.device_ = pages.device();
    for (int layer = 0; layer < layout.num_layers(); ++layer) {
      const KvPageLayer& of = layout.options().layers[layer];
      const at::Tensor typed = pages.view(ToScalarType(of.dtype));
      std::vector<at::Tensor> tensors;
      for (const KvPageTensor& tensor : layout.tensors(layer)) {
        tensors.push_back(typed.as_strided(tensor.spec.shape, tensor.spec.strides,
                                           tensor.offset_bytes / SizeOf(of.dtype)));
      }
      cache.tensors_.push_back(std::move(tensors));
      cache.layers_.push_back(layout.MakeKvLayer(layer, pages.mutable_data_ptr()));
      cache.groups_.push_back(of.group);
    }
    cache.FindSharing();
    return cache;
  });
}

absl::StatusOr<KvCache> KvCache::Wrap(const KvLayout& layout,
                                      std::vector<std::vector<at::Tensor>> layers) {
  return CatchTorchOr([&]() -> absl::StatusOr<KvCache> {
    REPRISE_RETURN_IF_ERROR(CheckLayers(layout, layers));
    return KvCache(layout, std::move(layers));
  });
}

KvCache::KvCache(const KvLayout& layout, std::vector<std::vector<at::Tensor>> tensors)
    : device_(tensors[0][0].device()),
      tensors_(std::move(tensors)),
      groups_(tensors_.size(), 0),
      bytes_per_block_(layout.bytes_per_block()) {
  for (const std::vector<at::Tensor>& of_layer : tensors_) {
    std::vector<KvTensorRef> refs;
    for (const at::Tensor& tensor : of_layer) {
      const at::IntArrayRef strides = tensor.strides();
      refs.push_back({tensor.mutable_data_ptr(), {strides.data(), strides.size()}});
    }
    layers_.push_back(layout.MakeKvLayer(refs));
  }
  FindSharing();
}

void KvCache::FindSharing() {
  shares_with_.resize(layers_.size());
  for (int layer = 0; layer < num_layers(); ++layer) {
    for (int earlier = 0; earlier < layer; ++earlier) {
      // Groups may overlap in memory without sharing layers.
      if (groups_[earlier] != groups_[layer]) continue;
      if (layers_[earlier].k.data != layers_[layer].k.data ||
          layers_[earlier].v.data != layers_[layer].v.data) {
        continue;
      }
      shares_with_[layer] = earlier;
      break;
    }
  }
}

const KvLayer& KvCache::layer(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return layers_[layer];
}

absl::Span<const at::Tensor> KvCache::tensors(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return tensors_[layer];
}

int KvCache::group(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return groups_[layer];
}

std::optional<int> KvCache::shares_with(int layer) const {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  return shares_with_[layer];
}

void KvCache::SetScales(int layer, const Scale& k_scale, const Scale& v_scale) {
  const int storage = shares_with(layer).value_or(layer);
  for (int other = 0; other < num_layers(); ++other) {
    if (shares_with_[other].value_or(other) != storage) continue;
    layers_[other].k_scale = k_scale;
    layers_[other].v_scale = v_scale;
  }
}

absl::Status KvCache::Fill(float value) const {
  return CatchTorch([&] {
    const bool has_groups =
        std::any_of(groups_.begin(), groups_.end(), [](int g) { return g > 0; });
    if (has_groups && std::isnan(value)) {
      // Groups overlap in one storage. All bits set are NaN in every dtype.
      const at::Tensor& any = tensors_[0][0];
      const auto bytes = static_cast<int64_t>(any.storage().nbytes());
      at::empty({0}, any.options().dtype(at::kByte))
          .set_(any.storage(), 0, {bytes}, {1})
          .fill_(255);
      return absl::OkStatus();
    }
    for (const std::vector<at::Tensor>& of_layer : tensors_) {
      for (const at::Tensor& tensor : of_layer) tensor.fill_(value);
    }
    return absl::OkStatus();
  });
}

}  // namespace reprise
