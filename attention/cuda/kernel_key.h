// Derives the key for FindAttentionKernel() from the layer, the cache and the options of a call.
//
// Pure functions without CUDA and LibTorch, so that a plan can use them for later calls.

#ifndef REPRISE_ATTENTION_CUDA_KERNEL_KEY_H_
#define REPRISE_ATTENTION_CUDA_KERNEL_KEY_H_

#include "reprise/attention/attention_params.h"
#include "reprise/attention/cuda/attention_dispatch.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Returns the way in which kernels can read a view whose heads have `head_dim` elements of `dtype`.
KvAccess AccessOf(const KvView& view, int head_dim, DType dtype);

// The properties of a call that its layer and its cache do not determine.
struct CallForm {
  DType q_dtype = DType::kBFloat16;
  bool has_custom_mask = false;
  bool has_new_keys = false;  // AttentionExtras::new_k
};

// Returns the key, without the limits of the card, `rows` and `is_planned`. A ragged batch passes
// all keys as one block in `kv`.
AttentionKernelKey KernelKeyOf(const AttentionParams& layer, const KvLayer& kv,
                               const CallForm& form, const KernelChoice& kernels);

// Whether a custom mask, an option of the layer or the conversion of keys excludes tuned kernels
// (tier 2). If so, plan the schedule with KernelChoice::max_tier 1.
bool NeedsGeneralKernels(const AttentionKernelKey& key);

// Returns `kernels`, with max_tier 1 if the layer's own options exclude tuned kernels in all calls:
// rotary embedding, scales per q head, slopes per sequence.
KernelChoice KernelsFor(const AttentionParams& layer, const KernelChoice& kernels);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_KERNEL_KEY_H_
