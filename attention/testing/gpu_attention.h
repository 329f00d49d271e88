// Runs a fixture on the GPU: uploads the fixture, plans and builds a tile schedule over poisoned
// memory, and downloads out and lse. Also runs it in a captured graph over changing contents.
//
//   GpuAttention gpu(pair.first, {.out_dtype = DType::kBFloat16, .num_sms = 3});
//   ASSERT_TRUE(gpu.Run().ok());
//   AttentionValues values = gpu.Values();   // for the batch's tokens
//   ASSERT_TRUE(gpu.Capture().ok());
//   gpu.Write(pair.second);
//   ASSERT_TRUE(gpu.Replay().ok());
//
// GpuAttentionOptions may request gaps between the heads and tokens of out, and rows of out and lse
// after the batch's tokens. out and lse are NaN before the first run.
//
// Thread safety: not thread-safe; one owner.

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
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/dtype.h"

struct CUgraphExec_st;

namespace reprise {

struct GpuAttentionOptions {
  std::optional<DType> out_dtype = {};  // default: the dtype of q
  std::optional<float> out_scale = {};  // for a quantised out
  bool out_scale_in_memory = false;     // on the device; WriteOutScale() changes it
  int out_block = 0;                    // columns per scale of a quantised out; 0: no block scales
  KernelChoice kernels = {};
  int num_extra_tokens = 0;  // rows of out and lse after the batch's tokens
  int out_head_gap = 0;      // elements
  int out_token_gap = 0;
  int num_sms = 132;
  int max_shared_bytes = 0;
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;
};

class GpuAttention {
 public:
  GpuAttention(const PagedFixture& fixture, const GpuAttentionOptions& options);
  GpuAttention(const RaggedFixture& fixture, const GpuAttentionOptions& options);

  // Builds the tile schedule and computes the attention, on the current stream. Does not wait.
  absl::Status Run();

  // Captures the work of Run(), schedule and attention, on a separate stream. Waits for all earlier
  // work.
  // Errors: errors of Run() and of the capture.
  absl::Status Capture();

  // Overwrites all arrays, q and the keys with the contents of `fixture`, at the same addresses.
  // REQUIRES: `fixture` belongs to the same FixturePair as the constructor's fixture.
  void Write(const PagedFixture& fixture);
  void Write(const RaggedFixture& fixture);

  // Overwrites the scale of out at its address. REQUIRES: out_scale_in_memory.
  void WriteOutScale(float scale);

  // Launches the captured graph over a poisoned tile schedule, out and lse. Waits.
  // REQUIRES: Capture() has returned OK.
  absl::Status Replay();

  // The bytes of all results: of out for the batch's tokens, of lse and block scales for all.
  // DifferenceFrom() returns the name of the first that differs, "out", "lse" or
  // "out_block_scales", and an empty string if all are equal. DifferenceFrom() waits.
  struct Bits {
    at::Tensor out, lse, block_scales;
  };
  Bits CopyBits() const;
  std::string DifferenceFrom(const Bits& bits) const;

  // Returns the name of the kernel that runs, or the names of two, joined by " + ".
  absl::StatusOr<std::string> KernelName();

  // Returns out, times its scales, and lse for the batch's tokens. Waits.
  AttentionValues Values() const;

  // Returns an empty string if gaps are unchanged and rows after the batch's tokens are 0 and -inf.
  // Otherwise describes the fault. Waits.
  std::string FaultOutside() const;

  const at::Tensor& out() const { return out_; }
  const at::Tensor& lse() const { return lse_; }
  const at::Tensor& block_scales() const { return out_block_scales_; }
  GpuTileSchedule& work() { return *work_; }
  const AttentionParams& layer() const { return layer_; }
  const KvLayer& kv() const { return kv_; }  // for a paged batch
  const PagedBatch& paged_batch() const { return std::get<PagedBatch>(batch_); }

 private:
  template <typename Batch>
  KernelChoice KernelsOf(const Batch& batch, KernelChoice kernels, DType q_dtype) const;
  template <typename Batch>
  void Plan(const Batch& batch, const GpuAttentionOptions& options, DType q_dtype);
  // Places all contents. Later calls overwrite the existing copies.
  void Place(const PagedFixture& fixture);
  void Place(const RaggedFixture& fixture);
  ContiguousKeys Keys() const { return {k_, v_, k_scale_, v_scale_}; }  // only for a ragged batch
  void Poison();

  GpuMemory memory_;
  AttentionParams layer_;
  std::variant<PagedBatch, RaggedBatch> batch_;
  KvLayer kv_;
  at::Tensor q_;
  at::Tensor k_;  // ragged batches only
  at::Tensor v_;
  at::Tensor out_memory_;  // [tokens, heads, head_dim_v + gaps]
  at::Tensor out_;
  at::Tensor lse_;
  at::Tensor new_k_;
  at::Tensor new_v_;
  at::Tensor out_block_scales_;  // [tokens, heads, head_dim_v / out_block]
  std::optional<float> out_scale_;
  at::Tensor out_scale_memory_;  // [1], if the scale is in memory
  Scale k_scale_;                // ragged batches only
  Scale v_scale_;
  AttentionExtras extras_;
  int num_tokens_ = 0;
  std::optional<GpuTileSchedule> work_;
  std::shared_ptr<CUgraphExec_st> graph_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_GPU_ATTENTION_H_
