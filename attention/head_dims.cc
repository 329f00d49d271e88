#include "reprise/attention/head_dims.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/attention/cuda/tiles.h"

namespace reprise {
namespace {

// Whether `a` covers `b`: every call with dims within `b` is also within `a`.
bool Covers(const HeadDims& a, const HeadDims& b) {
  return a.qk >= b.qk && a.v >= b.v && (!a.v_in_k || b.v_in_k);
}

bool IsServed(DType q_dtype) {
  return std::ranges::any_of(kAttentionKernels, [&](const AttentionKernelEntry& kernel) {
    return kernel.tile.dtype == ProductType(q_dtype);
  });
}

}  // namespace

std::vector<HeadDims> LargestHeadDims(AttentionDevice device, DType q_dtype) {
  std::vector<HeadDims> largest;
  if (device == AttentionDevice::kCpu) return largest;
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const AttentionTile& tile = kernel.tile;
    if (tile.dtype != ProductType(q_dtype)) continue;
    const HeadDims dims = {tile.head_dim_qk, tile.head_dim_v, tile.values == ValueSource::kKeyTile};
    const auto covers = [&](const HeadDims& other) { return Covers(other, dims); };
    if (std::ranges::any_of(largest, covers)) continue;
    std::erase_if(largest, [&](const HeadDims& other) { return Covers(dims, other); });
    largest.push_back(dims);
  }
  // Limits without v_in_k come first.
  std::ranges::stable_partition(largest, [](const HeadDims& dims) { return !dims.v_in_k; });
  return largest;
}

bool SupportsHeadDims(AttentionDevice device, DType q_dtype, const HeadDims& dims) {
  if (dims.qk < 1 || dims.v < 1 || (dims.v_in_k && dims.v > dims.qk)) return false;
  if (device == AttentionDevice::kCpu) return IsServed(q_dtype);
  return std::ranges::any_of(LargestHeadDims(device, q_dtype),
                             [&](const HeadDims& largest) { return Covers(largest, dims); });
}

std::string SupportedHeadDims(AttentionDevice device, DType q_dtype) {
  if (!IsServed(q_dtype)) return "no head dims";
  if (device == AttentionDevice::kCpu) return "any head dims";
  std::string text = "head dims";
  const char* separator = " to ";
  for (const HeadDims& dims : LargestHeadDims(device, q_dtype)) {
    absl::StrAppend(&text, separator, dims.qk);
    if (dims.v != dims.qk) absl::StrAppend(&text, " and ", dims.v);
    if (dims.v_in_k) absl::StrAppend(&text, " where V is the first columns of K");
    separator = ", or to ";
  }
  return text;
}

}  // namespace reprise
