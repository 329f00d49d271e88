#include "reprise/hf/element_conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <glog/logging.h>

#include <cstring>

namespace reprise {
namespace {

template <typename From, typename To>
void Convert(const void* source, void* target, int64_t count) {
  const From* const in = static_cast<const From*>(source);
  To* const out = static_cast<To*>(target);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<To>(static_cast<float>(in[i]));
}

template <typename From>
void ConvertFrom(const void* source, DType to, void* target, int64_t count) {
  switch (to) {
    case DType::kFloat32:
      return Convert<From, float>(source, target, count);
    case DType::kFloat16:
      return Convert<From, c10::Half>(source, target, count);
    case DType::kBFloat16:
      return Convert<From, c10::BFloat16>(source, target, count);
    default:
      LOG(FATAL) << "not a type of weights: " << to;
  }
}

}  // namespace

void ConvertElements(DType from, const void* source, DType to, void* target, int64_t count) {
  if (from == to) {
    std::memcpy(target, source, count * SizeOf(from));
    return;
  }
  switch (from) {
    case DType::kFloat64:
      return ConvertFrom<double>(source, to, target, count);
    case DType::kFloat32:
      return ConvertFrom<float>(source, to, target, count);
    case DType::kFloat16:
      return ConvertFrom<c10::Half>(source, to, target, count);
    case DType::kBFloat16:
      return ConvertFrom<c10::BFloat16>(source, to, target, count);
    default:
      LOG(FATAL) << "not a type of weights: " << from;
  }
}

}  // namespace reprise
