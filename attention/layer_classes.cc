#include "reprise/attention/layer_classes.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/attention_kind.h"
#include "reprise/attention/checks.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status Refused(int layer, absl::string_view field, absl::string_view expected,
                     absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat("layers[", layer, "].", field, ": expected ", expected, ", got ", got));
}

std::string KindName(AttentionKind kind) { return std::string(AttentionKindName(kind)); }

std::string RetentionName(const KvGroupSpec& group) {
  switch (group.retention) {
    case KvRetention::kFull:
      return "all keys";
    case KvRetention::kSlidingWindow:
      return absl::StrCat("a window of ", group.span, " tokens");
    case KvRetention::kChunkedLocal:
      return absl::StrCat("a chunk of ", group.span, " tokens");
    case KvRetention::kCross:
      return "the encoder's keys";
  }
  return "unknown";
}

bool HasCache(const LayerSpec& layer) {
  return layer.kind == AttentionKind::kDecoder || layer.kind == AttentionKind::kEncoderDecoder;
}

// The retention that keeps every key that the layer can see. If the layer has a chunk and a window,
// the chunk counts. REQUIRES: HasCache(layer).
KvGroupSpec RetentionOf(const LayerSpec& layer) {
  if (layer.kind == AttentionKind::kEncoderDecoder) return {.retention = KvRetention::kCross};
  if (layer.chunk_size) {
    return {.retention = KvRetention::kChunkedLocal, .span = *layer.chunk_size};
  }
  // A window of INT_MAX keeps all keys.
  if (layer.params.window_left && *layer.params.window_left < INT32_MAX) {
    return {.retention = KvRetention::kSlidingWindow, .span = *layer.params.window_left + 1};
  }
  return {};
}

// Whether `kept` contains the keys of `needed` for sequences of any length.
bool Keeps(const KvGroupSpec& kept, const KvGroupSpec& needed) {
  if (kept == needed) return true;
  switch (kept.retention) {
    case KvRetention::kFull:
      return needed.retention != KvRetention::kCross;
    case KvRetention::kSlidingWindow:
      // At the end of a chunk, all span - 1 tokens before the next token are needed.
      return (needed.retention == KvRetention::kSlidingWindow ||
              needed.retention == KvRetention::kChunkedLocal) &&
             needed.span <= kept.span;
    case KvRetention::kChunkedLocal:
      // A window of one token needs only the query's own token.
      return (needed.retention == KvRetention::kChunkedLocal && kept.span % needed.span == 0) ||
             (needed.retention == KvRetention::kSlidingWindow && needed.span == 1);
    case KvRetention::kCross:
      break;
  }
  return false;
}

bool IsQueryType(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         IsFp8(dtype);
}

absl::Status CheckAlone(int index, const LayerSpec& layer) {
  if (absl::Status status = CheckAttentionParams(layer.params); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers[", index, "].params.", status.message()));
  }
  if (layer.chunk_size && *layer.chunk_size < 1) {
    return Refused(index, "chunk_size", "at least 1", absl::StrCat(*layer.chunk_size));
  }
  if (layer.chunk_size && layer.kind != AttentionKind::kDecoder) {
    return Refused(index, "chunk_size", absl::StrCat("none for kind ", KindName(layer.kind)),
                   absl::StrCat(*layer.chunk_size));
  }
  // A window counts positions, which the decoder's queries and the encoder's keys do not share.
  const bool is_cross = layer.kind == AttentionKind::kEncoderDecoder;
  const std::pair<const char*, std::optional<int>> windows[] = {
      {"params.window_left", layer.params.window_left},
      {"params.window_right", layer.params.window_right}};
  for (const auto& [name, window] : windows) {
    if (!is_cross || !window) continue;
    return Refused(index, name,
                   absl::StrCat("none for kind ", KindName(layer.kind),
                                ", whose queries and keys have no positions in common"),
                   absl::StrCat(*window));
  }
  if (layer.v_in_k && layer.params.head_dim_v > layer.params.head_dim_qk) {
    return Refused(index, "params.head_dim_v",
                   absl::StrCat("at most ", layer.params.head_dim_qk, " (head_dim_qk) with v_in_k"),
                   absl::StrCat(layer.params.head_dim_v));
  }
  if (layer.q_dtype && !IsQueryType(*layer.q_dtype)) {
    return Refused(index, "q_dtype", "float32, float16, bfloat16 or an fp8 type",
                   std::string(DTypeName(*layer.q_dtype)));
  }
  return absl::OkStatus();
}

// The shape of the layer's cache, except its blocks.
auto CacheShape(const LayerSpec& layer) {
  return std::tuple(layer.params.num_kv_heads, layer.params.head_dim_qk, layer.params.head_dim_v,
                    layer.v_in_k);
}

absl::Status CheckSharing(absl::Span<const LayerSpec> layers, int index) {
  const LayerSpec& layer = layers[index];
  const int owner_index = *layer.shares_kv_with;
  const std::string got = absl::StrCat(owner_index);
  if (!HasCache(layer)) {
    return Refused(index, "shares_kv_with", absl::StrCat("none for kind ", KindName(layer.kind)),
                   got);
  }
  if (owner_index < 0 || owner_index >= index) {
    return Refused(index, "shares_kv_with", absl::StrCat("an earlier layer, 0 to ", index - 1),
                   got);
  }
  const LayerSpec& owner = layers[owner_index];
  if (owner.shares_kv_with) {
    return Refused(index, "shares_kv_with", "a layer that owns its cache",
                   absl::StrCat(got, ", which shares the cache of layer ", *owner.shares_kv_with));
  }
  if (owner.kind != layer.kind) {
    return Refused(index, "shares_kv_with", absl::StrCat("a layer of kind ", KindName(layer.kind)),
                   absl::StrCat(got, " of kind ", KindName(owner.kind)));
  }
  if (CacheShape(owner) != CacheShape(layer)) {
    return Refused(index, "shares_kv_with",
                   "a layer with the same num_kv_heads, head_dim_qk, head_dim_v and v_in_k", got);
  }
  const KvGroupSpec kept = RetentionOf(owner);
  const KvGroupSpec needed = RetentionOf(layer);
  if (Keeps(kept, needed)) return absl::OkStatus();
  return Refused(index, "shares_kv_with",
                 absl::StrCat("a layer that keeps ", RetentionName(needed)),
                 absl::StrCat(got, ", which keeps ", RetentionName(kept)));
}

ClassBatch BatchOf(const LayerSpec& layer) {
  if (!HasCache(layer)) return ClassBatch::kContiguous;
  if (layer.kind == AttentionKind::kEncoderDecoder) return ClassBatch::kEncoderKeys;
  return layer.chunk_size ? ClassBatch::kLocalRows : ClassBatch::kRows;
}

auto ClassKey(const LayerSpec& layer) {
  const AttentionParams& params = layer.params;
  return std::tuple(layer.kind, params.num_q_heads, params.num_kv_heads, params.head_dim_qk,
                    params.head_dim_v, params.window_left, params.window_right, layer.chunk_size,
                    layer.v_in_k, layer.q_dtype, KernelsFor(params, layer.kernels));
}

// Returns the index of `value` in `values`. Appends it if it is new.
template <typename T, typename IsSame>
int FindOrAdd(std::vector<T>& values, const T& value, IsSame is_same) {
  const auto found = absl::c_find_if(values, is_same);
  const auto index = static_cast<int>(found - values.begin());
  if (found == values.end()) values.push_back(value);
  return index;
}

}  // namespace

absl::StatusOr<LayerClasses> CollectLayerClasses(absl::Span<const LayerSpec> layers) {
  if (layers.empty()) {
    return absl::InvalidArgumentError("layers: expected at least one attention layer, got none");
  }
  LayerClasses result;
  for (int index = 0; index < static_cast<int>(layers.size()); ++index) {
    const LayerSpec& layer = layers[index];
    REPRISE_RETURN_IF_ERROR(CheckAlone(index, layer));
    if (layer.shares_kv_with) REPRISE_RETURN_IF_ERROR(CheckSharing(layers, index));

    std::optional<int> group;
    std::optional<int> cache;
    if (layer.shares_kv_with) {
      cache = *layer.shares_kv_with;
      group = result.group_of_layer[*cache];
    } else if (HasCache(layer)) {
      cache = index;
      const KvGroupSpec needed = RetentionOf(layer);
      group = FindOrAdd(result.groups, needed,
                        [&](const KvGroupSpec& other) { return other == needed; });
    }
    result.group_of_layer.push_back(group);
    result.cache_of_layer.push_back(cache);

    const LayerClass own = {.first_layer = index,
                            .batch = BatchOf(layer),
                            .chunk_size = layer.chunk_size,
                            .kv_group = group};
    result.class_of_layer.push_back(FindOrAdd(result.classes, own, [&](const LayerClass& other) {
      return other.kv_group == group && ClassKey(layers[other.first_layer]) == ClassKey(layer);
    }));
  }
  return result;
}

}  // namespace reprise
