// A model that every rank has as a whole, beside others that are divided: a draft model that is too
// small to be divided, for example.
//
//   std::unique_ptr<Model> draft = ReplicateOverRanks(std::move(model), collectives);
//
// Every rank computes the same, but may round in another way (products are chosen by timing), and
// then choose other tokens. So all ranks take the logits, and the hidden states, of rank 0.
//
// Thread safety: as Model.

#ifndef REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_
#define REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_

#include <memory>

#include "reprise/distributed/collectives.h"
#include "reprise/runner/model.h"

namespace reprise {

// The model with rank 0's results; the model itself if `collectives` is null or of one rank, else
// it must outlive the result. Errors of its forward passes: the model's; those of Broadcast().
std::unique_ptr<Model> ReplicateOverRanks(std::unique_ptr<Model> model, Collectives* collectives);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_REPLICATED_MODEL_H_
