#include "reprise/attention/cuda/kernel_key.h"

#include <cstdint>
#include <optional>

namespace reprise {
namespace {

// Absorbed MLA: V is the first columns of K.
ValueSource ValuesOf(const KvLayer& kv) {
  const bool in_keys = kv.v.data == kv.k.data && kv.head_dim_v <= kv.head_dim_qk &&
                       kv.v.block_stride == kv.k.block_stride &&
                       kv.v.token_stride == kv.k.token_stride &&
                       (kv.num_kv_heads == 1 || kv.v.head_stride == kv.k.head_stride) &&
                       kv.k.dim_chunk >= kv.key_dim() && kv.v.dim_chunk >= kv.head_dim_v;
  return in_keys ? ValueSource::kKeyTile : ValueSource::kOwn;
}

// The cheapest way in which the call's keys can be loaded.
KvLoading LoadingOf(const AttentionParams& layer, const KvLayer& kv, const CallForm& form,
                    const KernelChoice& kernels) {
  const bool is_plain = AccessOf(kv.k, kv.key_dim(), kv.dtype) == KvAccess::kChunks &&
                        AccessOf(kv.v, kv.head_dim_v, kv.dtype) == KvAccess::kChunks &&
                        !layer.rotary && kv.rope_dim == 0 && !form.has_new_keys;
  if (!is_plain) return KvLoading::kConverted;
  if (IsFp8(kv.dtype)) return KvLoading::kFp8;
  const bool is_direct =
      kv.dtype == form.q_dtype && kernels.products.value_or(form.q_dtype) == form.q_dtype;
  return is_direct ? KvLoading::kDirect : KvLoading::kConverted;
}

bool NeedsRareTerms(const AttentionParams& layer) {
  return layer.q_head_scales != nullptr || layer.alibi_row_stride != 0;
}

}  // namespace

KvAccess AccessOf(const KvView& view, int head_dim, DType dtype) {
  const int chunk = 16 / SizeOf(dtype);
  const bool chunks = view.dim_chunk >= head_dim ||
                      (view.dim_chunk % chunk == 0 && view.dim_chunk_stride % chunk == 0);
  if (chunks && head_dim % chunk == 0 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
      view.block_stride % chunk == 0 && view.token_stride % chunk == 0 &&
      view.head_stride % chunk == 0) {
    return KvAccess::kChunks;
  }
  return view.token_stride == 1 ? KvAccess::kTokens : KvAccess::kElements;
}

AttentionKernelKey KernelKeyOf(const AttentionParams& layer, const KvLayer& kv,
                               const CallForm& form, const KernelChoice& kernels) {
  return {.q_dtype = form.q_dtype,
          .kv_dtype = kv.dtype,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v,
          .values = ValuesOf(kv),
          .loading = LoadingOf(layer, kv, form, kernels),
          .has_rotary = layer.rotary.has_value(),
          .rope_dtype = kv.rope_dim > 0 ? std::optional(kv.rope_dtype) : std::nullopt,
          .is_general = form.has_custom_mask || NeedsRareTerms(layer),
          .products = kernels.products,
          .max_tier = kernels.max_tier};
}

bool NeedsGeneralKernels(const AttentionKernelKey& key) {
  return key.is_general || key.loading == KvLoading::kConverted;
}

KernelChoice KernelsFor(const AttentionParams& layer, const KernelChoice& kernels) {
  KernelChoice own = kernels;
  if (layer.rotary || NeedsRareTerms(layer)) own.max_tier = 1;
  return own;
}

}  // namespace reprise
