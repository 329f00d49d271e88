#include "reprise/runner/ranks/context_rows.h"

#include <ATen/ops/zeros.h>

#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/metadata/rank_rows.h"
#include "reprise/base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {

ContextRows::ContextRows(const ContextRowsOptions& options)
    : options_(options),
      lens_(at::zeros({2, options.max_rows}, at::TensorOptions(options.device).dtype(at::kInt))),
      slots_(at::zeros({options.num_groups, options.max_tokens},
                       at::TensorOptions(options.device).dtype(at::kLong))) {}

StepArrays ContextRows::ArraysOf(const StepArrays& arrays) const {
  StepArrays own = arrays;
  own.seq_lens = lens_.mutable_data_ptr<int32_t>();
  own.context_lens = own.seq_lens + options_.max_rows;
  own.slot_mapping = slots_.mutable_data_ptr<int64_t>();
  return own;
}

void ContextRows::Place(const StepArrays& arrays, StepBatches& batches) const {
  const auto place = [&](PagedBatch& batch) {
    batch.key_positions = options_.ranks;
    batch.query_positions = arrays.positions;
  };
  place(batches.rows);
  for (PagedBatch& batch : batches.of_class) place(batch);
  for (PagedBatch& batch : batches.before) place(batch);
}

absl::Status ContextRows::Build(const StepArrays& arrays, int num_rows, int num_tokens) const {
  const StepArrays own = ArraysOf(arrays);
  const RankRowsArgs args = {.ranks = options_.ranks,
                             .block_size = options_.block_size,
                             .num_rows = num_rows,
                             .num_tokens = num_tokens,
                             .num_groups = options_.num_groups,
                             .group_stride = options_.max_tokens,
                             .seq_lens = arrays.seq_lens,
                             .context_lens = arrays.context_lens,
                             .slot_mapping = arrays.slot_mapping,
                             .rank_seq_lens = own.seq_lens,
                             .rank_context_lens = own.context_lens,
                             .rank_slot_mapping = own.slot_mapping};
#ifdef REPRISE_WITH_CUDA
  if (lens_.is_cuda()) {
    return LaunchOnCurrentStream(lens_,
                                 [&](cudaStream_t stream) { return LaunchRankRows(args, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckRankRows(args));
  RankRowsOnHost(args);
  return absl::OkStatus();
}

int ContextRows::max_seq_len() const {
  // Rank 0 stores the largest number of keys.
  KeyPositions first = options_.ranks;
  first.rank = 0;
  return static_cast<int>(LocalLen(options_.max_seq_len, first));
}

int64_t ContextRows::bytes() const {
  return static_cast<int64_t>(lens_.nbytes() + slots_.nbytes());
}

void ContextRows::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddValue("context_rank", options_.ranks.rank);
  fingerprint.AddValue("context_ranks", options_.ranks.world);
  fingerprint.AddValue("context_interleave", options_.ranks.interleave);
  fingerprint.AddAddress("context_lens", lens_.const_data_ptr());
  fingerprint.AddAddress("context_slots", slots_.const_data_ptr());
}

}  // namespace reprise
