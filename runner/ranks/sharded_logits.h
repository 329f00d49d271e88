// Logits that are sharded over the vocabulary: each rank holds its shard until a step needs whole
// rows.
//
//   // In the runner, for a model whose spec has sharded_logits:
//   Step::Parts{..., .sharded_logits = memory}   // the forward pass writes its shard to `memory`
//   // After the step, if whole rows are needed:
//   REPRISE_RETURN_IF_ERROR(logits->Gather(logits->PartsIn(memory, num_rows), step_logits));
//
// The shards are a tensor [world, num_rows, largest share] in the dtype of the logits. Row r of
// rank i holds the rank's share of the row, followed by unspecified values. Each rank writes its
// own shard; Gather() fetches the shards of the other ranks.
//
// Thread safety: one thread per Collectives.

#ifndef REPRISE_RUNNER_RANKS_SHARDED_LOGITS_H_
#define REPRISE_RUNNER_RANKS_SHARDED_LOGITS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"

namespace reprise {

class ShardedLogits {
 public:
  // `collectives` must outlive this object; null: one rank. REQUIRES: vocab_size >= the number of
  // ranks.
  ShardedLogits(int64_t vocab_size, Collectives* collectives);
  ShardedLogits(const ShardedLogits&) = delete;
  ShardedLogits& operator=(const ShardedLogits&) = delete;

  int64_t vocab_size() const { return vocab_size_; }
  Ranks ranks() const { return RanksOf(collectives_); }
  Collectives* collectives() const { return collectives_; }
  const Share& share() const { return share_; }             // of this rank
  int64_t largest_share() const { return largest_share_; }  // columns of the shards

  // Number of elements in the shards of `num_rows` rows.
  int64_t PartsSize(int64_t num_rows) const { return ranks().world * num_rows * largest_share_; }
  // Returns the shards of `num_rows` rows, [world, num_rows, largest share], as a view of the start
  // of `memory`. REQUIRES: `memory` is contiguous and has at least PartsSize(num_rows) elements.
  at::Tensor PartsIn(const at::Tensor& memory, int64_t num_rows) const;

  // Writes the shards of all ranks to `logits` [num_rows, vocab_size], in the order of the
  // vocabulary. Every rank must call it after writing its own shard to `parts`; overwrites the
  // other shards. Errors: InvalidArgument if the shape of `logits` is wrong; as AllGather(). May
  // throw LibTorch's exceptions.
  absl::Status Gather(at::Tensor parts, const at::Tensor& logits) const;

 private:
  int64_t vocab_size_;
  Collectives* collectives_;
  Share share_;
  int64_t largest_share_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SHARDED_LOGITS_H_
