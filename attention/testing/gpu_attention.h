// Runs a fixture on the GPU: uploads it, plans and builds a work map over poisoned memory, and
// brings back out and lse. The same in a captured graph, over changing contents.
//
//   GpuAttention gpu(pair.first, {.out_dtype = DType::kBFloat16, .num_sms = 3});
//   ASSERT_TRUE(gpu.Run().ok());
//   AttentionValues values = gpu.Values();   // of the batch's tokens
//   ASSERT_TRUE(gpu.Capture().ok());
//   gpu.Write(pair.second);
//   ASSERT_TRUE(gpu.Replay().ok());
//
// out and lse have gaps between their strides and rows beyond the batch's; both are NaN before the
// run.
//
// Thread safety: none; one owner.

#ifndef REPRISE_ATTENTION_TESTING_GPU_ATTENTION_H_
#define REPRISE_ATTENTION_TESTING_GPU_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/dtype.h"

struct CUgraphExec_st;

namespace reprise {

struct GpuAttentionOptions {
  std::optional<DType> out_dtype = {};  // q's
  std::optional<float> out_scale = {};  // of a quantised out
  bool out_scale_in_memory = false;     // of the device, where WriteOutScale() changes it
  int out_block = 0;                    // columns that share a scale of a quantised out; 0: none
  KernelChoice kernels = {};
  int num_extra_tokens = 0;  // rows of out and lse beyond the batch's
  int out_head_gap = 0;      // elements
  int out_token_gap = 0;
  int num_sms = 132;
  int max_shared_bytes = 0;
  WorkMapMode mode = WorkMapMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;
};

class GpuAttention {
 public:
  GpuAttention(const PagedFixture& fixture, const GpuAttentionOptions& options);
  GpuAttention(const RaggedFixture& fixture, const GpuAttentionOptions& options);

  // Builds the map and attends, on the current stream. Does not wait.
  absl::Status Run();

  // Captures what Run() does, map and attention, on a stream of its own. Waits. Errors: those of
  // Run(), and of the capture.
  absl::Status Capture();

  // Overwrites all arrays, q and the keys with those of `fixture`, at the same addresses. REQUIRES:
  // `fixture` is of the pair of the one that this was made from.
  void Write(const PagedFixture& fixture);
  void Write(const RaggedFixture& fixture);

  // Overwrites the scale of out at its address. REQUIRES: out_scale_in_memory.
  void WriteOutScale(float scale);

  // Launches the captured graph over a poisoned work map, out and lse. REQUIRES: Capture() has
  // returned OK. Waits.
  absl::Status Replay();

  // All bits of the results; no more than "out", "lse" or "out_block_scales" is said where those of
  // two runs over the same contents differ. Wait.
  struct Bits {
    at::Tensor out, lse, block_scales;
  };
  Bits CopyBits() const;
  std::string DifferenceFrom(const Bits& bits) const;

  // The name of the kernel that runs.
  absl::StatusOr<std::string> KernelName();

  // Out, times its scales, and lse of the batch's tokens. Waits.
  AttentionValues Values() const;

  // Empty if rows beyond the batch's are 0 and -inf and gaps are untouched, else what is wrong.
  // Waits.
  std::string FaultOutside() const;

  const at::Tensor& out() const { return out_; }
  const at::Tensor& lse() const { return lse_; }
  const at::Tensor& block_scales() const { return out_block_scales_; }
  GpuWorkMap& work() { return *work_; }
  const AttentionParams& layer() const { return layer_; }
  const KvLayer& kv() const { return kv_; }  // of a paged batch
  const PagedBatch& paged_batch() const { return std::get<PagedBatch>(batch_); }

 private:
  template <typename Batch>
  KernelChoice KernelsOf(const Batch& batch, KernelChoice kernels, DType q_dtype) const;
  template <typename Batch>
  void Plan(const Batch& batch, const GpuAttentionOptions& options, DType q_dtype);
  // Places all contents; the first time anew, then over what is there.
  void Place(const PagedFixture& fixture);
  void Place(const RaggedFixture& fixture);
  ContiguousKeys Keys() const { return {k_, v_, k_scale_, v_scale_}; }  // only for a ragged batch
  void Poison();

  GpuMemory memory_;
  AttentionParams layer_;
  std::variant<PagedBatch, RaggedBatch> batch_;
  KvLayer kv_;
  at::Tensor q_;
  at::Tensor k_;  // ragged
  at::Tensor v_;
  at::Tensor out_memory_;  // [tokens, heads, head_dim_v + gaps]
  at::Tensor out_;
  at::Tensor lse_;
  at::Tensor new_k_;
  at::Tensor new_v_;
  at::Tensor out_block_scales_;  // [tokens, heads, head_dim_v / out_block]
  std::optional<float> out_scale_;
  at::Tensor out_scale_memory_;  // [1], if it is in memory
  Scale k_scale_;                // ragged
  Scale v_scale_;
  AttentionExtras extras_;
  int num_tokens_ = 0;
  std::optional<GpuWorkMap> work_;
  std::shared_ptr<CUgraphExec_st> graph_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_GPU_ATTENTION_H_
