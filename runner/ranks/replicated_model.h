// A model that every rank holds completely, next to models that are sharded. Example: a draft model
// that is too small to be sharded.
//
//   std::unique_ptr<Model> draft = ReplicateOverRanks(std::move(model), collectives);
//
// Every rank computes all results, but ranks may round differently, because GEMM algorithms are
// chosen by timing, and would then choose different tokens. All ranks therefore use the logits and
// the hidden states of rank 0.
//
// Thread safety: as Model.

#ifndef REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_
#define REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_

#include <memory>

#include "reprise/distributed/collectives.h"
#include "reprise/runner/model.h"

namespace reprise {

// Returns a model that computes `model` and returns rank 0's results, or `model` if `collectives`
// is null or has one rank. `collectives` must outlive the result. Errors of its forward passes: as
// `model` and Broadcast().
std::unique_ptr<Model> ReplicateOverRanks(std::unique_ptr<Model> model, Collectives* collectives);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_
