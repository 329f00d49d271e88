// Samples the tokens of a step from logits that stay divided over ranks: each rank looks for
// candidates in its share of the vocabulary, and what the ranks gather is those (runner/sampling/
// shard_sampling.h). A runner with a model that has divided logits owns one.
//
//   // Once per captured shape, where the step's work is made:
//   Step::Parts{..., .divided_logits = sampler->memory()};
//   // Each step, when its batch is accepted:
//   sampler->Plan(batch);
//   // When the forward pass is enqueued, on the step's stream:
//   if (sampler->serves()) {
//     REPRISE_RETURN_IF_ERROR(sampler->Sample({.num_logits = rows, ...}));   // the tokens
//   } else {
//     REPRISE_RETURN_IF_ERROR(sampler->Gather(rows, step_logits));           // then Sample()
//   }
//
// Every rank makes the same calls for the same batches. Tokens are those of Sample() over all logits,
// to the bit.
//
// Thread safety: none; one owner. On a GPU nothing is synchronised; device memory is allocated by
// Create() only.

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
#include "reprise/runner/ranks/divided_logits.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/sampling/shard_sampling_args.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

struct ShardSamplerOptions {
  DividedLogits* logits = nullptr;  // of the model, which must outlive the sampler
  int max_rows = 0;                 // of a step, and slots
  int max_logits = 0;               // rows of logits of a step that leaves them divided
  DType logits_dtype = DType::kFloat32;
  c10::Device device = c10::kCPU;
};

// The rows of a step to sample. Pointers are on the device of the logits.
struct ShardSampleArgs {
  int num_logits = 0;  // rows of logits that the forward pass has left
  int num_rows = 0;    // the first of them, to be sampled
  SamplingSlots slots = {};
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  int32_t* out = nullptr;                // [num_rows], likewise
};

class ShardSampler {
 public:
  // The divided logits of a model, if it has any and there are several ranks; else null.
  static DividedLogits* LogitsOf(const ModelSpec& spec);

  // Allocates, on LibTorch's current stream. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ShardSampler>> Create(const ShardSamplerOptions& options);

  // What forward passes leave, and where.
  DividedLogits* logits() const { return options_.logits; }
  const at::Tensor& memory() const { return memory_; }

  // Takes note of what sequences that join ask for, and of what the rows of the batch need. REQUIRES:
  // a batch that has been accepted.
  void Plan(const ScheduledBatch& batch);

  // Whether Sample() can choose the tokens of the last planned batch (ShardsServe()).
  bool serves() const { return serves_; }
  // How many of the largest keys of each row ranks tell each other; 0: one choice alone, as for greedy
  // rows.
  int num_top() const { return num_top_; }

  // Chooses the tokens of the planned batch, and advances the slots. REQUIRES: serves(), and rows as
  // planned. Errors: those of AllGather() and the launches.
  absl::Status Sample(const ShardSampleArgs& args);

  // logits [num_logits, vocab_size] = those that the forward pass has left. Errors: those of
  // DividedLogits::Gather().
  absl::Status Gather(int num_logits, const at::Tensor& logits);

  // Makes each kind of collective call once, so that what they allocate is there before the rest of
  // the memory is given away. `logits` [max_logits, vocab_size] is overwritten.
  absl::Status WarmUp(const at::Tensor& logits);

  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit ShardSampler(const ShardSamplerOptions& options);
  // Gathers [count] elements of each rank, of which this one's are in their place in `all`.
  absl::Status Exchange(const at::Tensor& all, int64_t count) const;

  ShardSamplerOptions options_;
  std::vector<SamplingParams> params_;  // [max_rows] of the slots' sequences
  bool serves_ = false;
  int num_top_ = 0;
  at::Tensor memory_;   // the parts of max_logits rows
  at::Tensor tops_;     // [world * max_rows * ShardTopWords(kMaxShardTop)] int32, of all ranks
  at::Tensor choices_;  // [world * max_rows] int64, likewise
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SHARD_SAMPLER_H_
