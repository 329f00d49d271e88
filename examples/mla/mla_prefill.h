// Attention of new tokens that is not absorbed: over their own keys and values where they stand, and
// over what the cache held before them, merged.
//
//   REPRISE_ASSIGN_OR_RETURN(const MlaPrefill prefill, MlaPrefill::Create(config, options, rows));
//   for (each layer) {
//     REPRISE_RETURN_IF_ERROR(prefill.AttendToNew(q, k, v, fresh));
//     REPRISE_RETURN_IF_ERROR(prefill.AttendToCached(q_latent, kv, cached));
//     ... cached.out expanded from latents to values ...
//     REPRISE_RETURN_IF_ERROR(prefill.Merge(fresh, expanded, out));
//   }
//
// One a step: it allocates, and its batches point into the step's. Thread safety: const data.

#ifndef EXAMPLES_MLA_MLA_PREFILL_H_
#define EXAMPLES_MLA_MLA_PREFILL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/work_map.h"
#include "base/dtype.h"
#include "cache/kv_layer.h"

namespace reprise {

struct MlaPrefillOptions {
  AttentionParams absorbed = {};  // over latents: one kv head
  AttentionParams expanded = {};  // over keys and values of every head
  DType dtype = DType::kFloat32;
  c10::Device device = c10::kCPU;
};

// What attention over some of the keys comes to.
struct PartialAttention {
  at::Tensor out;  // [num_tokens, num_heads, dim]
  at::Tensor lse;  // [num_tokens, num_heads] float32; -inf: no key
};

class MlaPrefill {
 public:
  // `rows`: the step's batch over the latents, this step's tokens included in seq_lens. Errors:
  // those of PlanWorkMap() and LaunchBuildWorkMap(), on a GPU.
  static absl::StatusOr<MlaPrefill> Create(const MlaPrefillOptions& options,
                                           const PagedBatch& rows);

  // q, k [num_tokens, num_heads, nope + rope], v [num_tokens, num_heads, v_head_dim], causal.
  absl::Status AttendToNew(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           PartialAttention& part) const;

  // q [num_tokens, num_heads, kv_lora_rank + rope] over what the cache held before this step; out is
  // of latents.
  absl::Status AttendToCached(const at::Tensor& q, const KvLayer& kv, PartialAttention& part) const;

  // out [num_tokens, num_heads, dim] of two parts; it may be one of theirs.
  absl::Status Merge(const PartialAttention& a, const PartialAttention& b,
                     const at::Tensor& out) const;

 private:
  MlaPrefill(const MlaPrefillOptions& options, const PagedBatch& rows);
  absl::Status BuildWorkMaps();

  MlaPrefillOptions options_;
  PagedBatch cached_;  // rows over the keys before theirs
  RaggedBatch fresh_;
  at::Tensor cached_lens_;  // [num_rows] int32
  at::Tensor cached_work_memory_, fresh_work_memory_;
  WorkMap cached_work_, fresh_work_;  // empty on the CPU
};

}  // namespace reprise

#endif  // EXAMPLES_MLA_MLA_PREFILL_H_
