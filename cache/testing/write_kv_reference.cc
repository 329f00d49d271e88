#include "reprise/cache/testing/write_kv_reference.h"

#include <cstdint>
#include <cstring>

#include "reprise/base/dtype.h"
#include "reprise/base/element_access.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {
namespace {

void WriteElement(const WriteKvArgs& args, const KvSide<ConstKvTokens>& side, int64_t token,
                  int64_t slot, int head, int dim) {
  const DType from_dtype = args.dtype, to_dtype = args.kv.dtype;
  const KvView& view = side.view;
  const int64_t from = token * side.tokens.token_stride + head * side.tokens.head_stride +
                       dim * side.tokens.dim_stride;
  const int64_t to = view.Offset(slot / args.kv.block_size, slot % args.kv.block_size, head, dim);
  const float scale = side.scale.data == nullptr ? side.scale.value
                                                 : side.scale.data[head * side.scale.head_stride];
  if (from_dtype == to_dtype && scale == 1.0f) {
    const int bytes = SizeOf(to_dtype);
    std::memcpy(static_cast<char*>(view.data) + to * bytes,
                static_cast<const char*>(side.tokens.data) + from * bytes, bytes);
    return;
  }
  const double value = LoadElement<double>(side.tokens.data, from_dtype, from);
  const bool is_double = from_dtype == DType::kFloat64 && to_dtype == DType::kFloat64;
  StoreElement(view.data, to_dtype, to,
               is_double ? value / scale : static_cast<float>(value) / scale);
}

}  // namespace

void WriteKvReference(const WriteKvArgs& args) {
  const KvLayer& kv = args.kv;
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0 || slot >= int64_t{kv.num_blocks} * kv.block_size) continue;
    for (int i = 0; i < args.num_sides; ++i) {
      const KvSide<ConstKvTokens> side = SideOf(args, i);
      for (int head = 0; head < kv.num_kv_heads; ++head) {
        for (int dim = 0; dim < side.head_dim; ++dim) {
          WriteElement(args, side, token, slot, head, dim);
        }
      }
    }
  }
}

}  // namespace reprise
