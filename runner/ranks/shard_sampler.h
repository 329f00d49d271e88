// Samples the tokens of a step from logits that stay sharded over ranks. Each rank finds candidates
// in its share of the vocabulary, and the ranks gather only these candidates
// (runner/sampling/shard_sampling.h). A runner owns one if its model has sharded logits.
//
//   // Once per captured shape, when the step's work is created:
//   Step::Parts{..., .sharded_logits = sampler->memory()};
//   // Each step, when its batch is accepted:
//   sampler->Plan(batch);
//   // After the forward pass is enqueued, on the step's stream:
//   if (sampler->serves()) {
//     REPRISE_RETURN_IF_ERROR(sampler->Sample({.num_logits = rows, ...}));   // the tokens
//   } else {
//     REPRISE_RETURN_IF_ERROR(sampler->Gather(rows, step_logits));           // then Sample()
//   }
//
// Every rank must make the same calls for the same batches. The tokens are bitwise identical to
// Sample() over the whole logits.
//
// Thread safety: none; one owner. Does not synchronise with a GPU. Only Create() and WarmUp()
// allocate device memory.

#ifndef REPRISE_RUNNER_RANKS_SHARD_SAMPLER_H_
#define REPRISE_RUNNER_RANKS_SHARD_SAMPLER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ranks/sharded_logits.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/sampling/shard_sampling_args.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

struct ShardSamplerOptions {
  ShardedLogits* logits = nullptr;  // must outlive the sampler
  int max_rows = 0;                 // maximum number of rows per step, and number of slots
  int max_logits = 0;  // maximum number of rows of logits in a step that keeps them sharded
  DType logits_dtype = DType::kFloat32;
  c10::Device device = c10::kCPU;
};

// The rows of a step to sample. Pointers are on the device of the logits.
struct ShardSampleArgs {
  int num_logits = 0;  // rows of logits that the forward pass has written
  int num_rows = 0;    // number of rows to sample, starting at row 0
  SamplingSlots slots = {};
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  int32_t* out = nullptr;                // [num_rows] as for Sample()
};

class ShardSampler {
 public:
  // Returns the sharded logits of a model; null if it has none or if there is one rank.
  static ShardedLogits* LogitsOf(const ModelSpec& spec);

  // Allocates on LibTorch's current stream. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ShardSampler>> Create(const ShardSamplerOptions& options);

  // The logits of forward passes, and the memory for their shards.
  ShardedLogits* logits() const { return options_.logits; }
  const at::Tensor& memory() const { return memory_; }

  // Records the sampling parameters of sequences that join and the requirements of the batch's
  // rows. REQUIRES: the batch has been accepted.
  void Plan(const ScheduledBatch& batch);

  // Returns whether Sample() supports the rows of the last planned batch (ShardsServe()).
  bool serves() const { return serves_; }
  // Number of largest keys per row that ranks exchange. 0: ranks exchange only one choice per row,
  // as for greedy rows.
  int num_top() const { return num_top_; }

  // Samples the tokens of the planned batch, and advances the slots. REQUIRES: serves(); rows as
  // planned. Errors: as AllGather() and the launches.
  absl::Status Sample(const ShardSampleArgs& args);

  // Gathers the logits that the forward pass has written into `logits` [num_logits, vocab_size].
  // Errors: as ShardedLogits::Gather().
  absl::Status Gather(int num_logits, const at::Tensor& logits);

  // Makes each kind of collective call once, so that the calls allocate their memory before the
  // runner uses the rest. Overwrites `logits` [max_logits, vocab_size].
  absl::Status WarmUp(const at::Tensor& logits);

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit ShardSampler(const ShardSamplerOptions& options);
  // Gathers `count` elements from each rank into `all`, where this rank's elements already are.
  absl::Status Exchange(const at::Tensor& all, int64_t count) const;

  ShardSamplerOptions options_;
  std::vector<SamplingParams> params_;  // [max_rows] sampling parameters per slot
  bool serves_ = false;
  int num_top_ = 0;
  at::Tensor memory_;   // the shards of max_logits rows
  at::Tensor tops_;     // [world * max_rows * ShardTopWords(kMaxShardTop)] int32, of all ranks
  at::Tensor choices_;  // [world * max_rows] int64, of all ranks
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SHARD_SAMPLER_H_
