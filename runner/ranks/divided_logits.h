// Logits of which each rank has its share of the vocabulary, until a step needs whole rows.
//
//   // In the runner, for a model whose spec names divided logits:
//   Step::Parts{..., .divided_logits = memory}   // the forward pass leaves its part there
//   // After the step, if whole rows are needed:
//   REPRISE_RETURN_IF_ERROR(logits->Gather(logits->PartsIn(memory, num_rows), step_logits));
//
// Parts are [world, num_rows, largest share] in the dtype of the logits: row r of rank i is its share
// of the row, then memory of any values. Each rank writes its own and gathers the others'.
//
// Thread safety: one thread a Collectives.

#ifndef REPRISE_RUNNER_RANKS_DIVIDED_LOGITS_H_
#define REPRISE_RUNNER_RANKS_DIVIDED_LOGITS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"

namespace reprise {

class DividedLogits {
 public:
  // `collectives` must outlive it; null: one rank. REQUIRES: vocab_size >= the number of ranks.
  DividedLogits(int64_t vocab_size, Collectives* collectives);
  DividedLogits(const DividedLogits&) = delete;
  DividedLogits& operator=(const DividedLogits&) = delete;

  int64_t vocab_size() const { return vocab_size_; }
  Ranks ranks() const { return RanksOf(collectives_); }
  Collectives* collectives() const { return collectives_; }
  const Share& share() const { return share_; }             // of this rank
  int64_t largest_share() const { return largest_share_; }  // the width of the parts

  // Elements of the parts of `num_rows` rows.
  int64_t PartsSize(int64_t num_rows) const { return ranks().world * num_rows * largest_share_; }
  // The parts of `num_rows` rows at the beginning of `memory`, [at least PartsSize(num_rows)] and
  // contiguous.
  at::Tensor PartsIn(const at::Tensor& memory, int64_t num_rows) const;

  // logits [num_rows, vocab_size] = the parts of all ranks, in the order of the vocabulary. Every
  // rank calls it, with its own part in place; the others' are written. Errors: InvalidArgument for
  // logits of another shape; those of AllGather(). May throw LibTorch's exceptions.
  absl::Status Gather(at::Tensor parts, const at::Tensor& logits) const;

 private:
  int64_t vocab_size_;
  Collectives* collectives_;
  Share share_;
  int64_t largest_share_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_DIVIDED_LOGITS_H_
