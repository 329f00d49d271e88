#include "cache/kv_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <glog/logging.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"

namespace reprise {
namespace {

// Layers of one allocation begin where 16-byte accesses are aligned, and sectors of memory too.
constexpr int64_t kLayerAlignmentBytes = 256;

int64_t NumElements(const KvTensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
}

// True if no two elements share memory: each dimension strides over all that the smaller strides
// span. Refuses some interleavings that do not overlap; no cache has them.
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

absl::Status CheckTensor(const std::string& name, const at::Tensor& tensor,
                         const KvTensorSpec& spec, DType dtype, at::Device device) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is missing: expected a tensor, got an undefined one"));
  }
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

}  // namespace

absl::StatusOr<KvCache> KvCache::Create(const KvLayout& layout, at::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<KvCache> {
    const DType dtype = layout.options().dtype;
    const int num_layers = layout.options().num_layers;
    const int64_t alignment = kLayerAlignmentBytes / SizeOf(dtype);
    std::vector<std::vector<at::Tensor>> tensors(num_layers);
    for (const KvTensorSpec& spec : layout.tensors()) {
      const int64_t layer_stride = (NumElements(spec) + alignment - 1) / alignment * alignment;
      const at::Tensor all =
          at::empty({num_layers * layer_stride},
                    at::TensorOptions().dtype(ToScalarType(dtype)).device(device));
      for (int layer = 0; layer < num_layers; ++layer) {
        tensors[layer].push_back(all.as_strided(spec.shape, spec.strides, layer * layer_stride));
      }
    }
    return KvCache(layout, std::move(tensors));
  });
}

absl::StatusOr<KvCache> KvCache::Wrap(const KvLayout& layout,
                                      std::vector<std::vector<at::Tensor>> layers) {
  const KvLayoutOptions& options = layout.options();
  if (static_cast<int>(layers.size()) != options.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers must be the layout's: expected ",
                                                   options.num_layers, ", got ", layers.size()));
  }
  std::optional<at::Device> device;
  for (int layer = 0; layer < options.num_layers; ++layer) {
    if (layers[layer].size() != layout.tensors().size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, " must have the layout's tensors: expected ",
                       layout.tensors().size(), ", got ", layers[layer].size()));
    }
    for (size_t i = 0; i < layers[layer].size(); ++i) {
      at::Tensor& tensor = layers[layer][i];
      if (!device.has_value() && tensor.defined()) device = tensor.device();
      const std::string name = absl::StrCat("tensor ", i, " of layer ", layer);
      REPRISE_RETURN_IF_ERROR(CheckTensor(name, tensor, layout.tensors()[i], options.dtype,
                                          device.value_or(at::Device(at::kCPU))));
      if (options.form == KvForm::kKPacked && i == 0 && tensor.strides().back() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " must have stride 1 in its last dimension: expected 1, got ",
                         tensor.strides().back()));
      }
      REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
        if (tensor.scalar_type() == at::kByte) tensor = tensor.view(ToScalarType(options.dtype));
        return absl::OkStatus();
      }));
    }
  }
  return KvCache(layout, std::move(layers));
}

KvCache::KvCache(const KvLayout& layout, std::vector<std::vector<at::Tensor>> tensors)
    : layout_(layout), device_(tensors[0][0].device()), tensors_(std::move(tensors)) {
  for (const std::vector<at::Tensor>& of_layer : tensors_) {
    std::vector<KvTensorRef> refs;
    for (const at::Tensor& tensor : of_layer) {
      const at::IntArrayRef strides = tensor.strides();
      refs.push_back({tensor.mutable_data_ptr(), {strides.data(), strides.size()}});
    }
    layers_.push_back(layout_.MakeKvLayer(refs));
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

void KvCache::SetScales(int layer, const Scale& k_scale, const Scale& v_scale) {
  CHECK(layer >= 0 && layer < num_layers()) << "layer " << layer << " of " << num_layers();
  layers_[layer].k_scale = k_scale;
  layers_[layer].v_scale = v_scale;
}

absl::Status KvCache::Fill(float value) {
  return CatchTorch([&] {
    for (std::vector<at::Tensor>& of_layer : tensors_) {
      for (at::Tensor& tensor : of_layer) tensor.fill_(value);
    }
    return absl::OkStatus();
  });
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<at::Tensor>& of_layer : tensors_) {
    for (const at::Tensor& tensor : of_layer) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace reprise
