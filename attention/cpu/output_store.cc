#include "reprise/attention/cpu/output_store.h"

#include <algorithm>
#include <cmath>

#include "reprise/base/element_access.h"

namespace reprise {
namespace {

void StoreFp8(const float* values, float factor, int begin, int end, DType dtype, void* out) {
  for (int d = begin; d < end; ++d) StoreElement(out, dtype, d, values[d] * factor);
}

}  // namespace

float BlockScaleOf(DType dtype, float largest) {
  return std::max(largest, 1e-10f) / (dtype == DType::kFp8E5M2 ? 57344.0f : 448.0f);
}

void StoreOutput(const HostCall& call, int64_t token, int64_t head, const float* values,
                 float factor) {
  const HostOutput& output = call.output;
  const DType dtype = output.out.dtype;
  const int head_dim = call.layer.head_dim_v;
  auto* out = static_cast<char*>(output.out.data) + output.out.Offset(token, head) * SizeOf(dtype);
  if (output.block_scales == nullptr) {
    factor /= output.scale.data ? *output.scale.data : output.scale.value;
    if (!IsFp8(dtype)) return call.kernels->store(values, factor, head_dim, dtype, out);
    return StoreFp8(values, factor, 0, head_dim, dtype, out);
  }
  float* scales =
      output.block_scales + token * output.block_token_stride + head * output.block_head_stride;
  for (int begin = 0; begin < head_dim; begin += output.block) {
    const int end = begin + output.block;
    float largest = 0.0f;
    for (int d = begin; d < end; ++d) largest = std::max(largest, std::abs(values[d] * factor));
    const float scale = BlockScaleOf(dtype, largest);
    scales[begin / output.block] = scale;
    StoreFp8(values, factor / scale, begin, end, dtype, out);
  }
}

}  // namespace reprise
