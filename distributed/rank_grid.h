// Ranks as a grid: weights are divided over one of its dimensions, and the keys of each sequence over
// the other (docs/distributed.md). Of 4 ranks with 2 context ranks:
//
//   rank                  0       1       2       3
//   divides weights with  0, 1    0, 1    2, 3    2, 3      the ranks of a row
//   divides keys with     0, 2    1, 3    0, 2    1, 3      those of a column: the same weights, heads
//
//   REPRISE_RETURN_IF_ERROR(CheckGrid(ranks.world, context_ranks));
//   const GridPlace place = PlaceInGrid(ranks, context_ranks);
//
// Thread safety: pure functions; a RankGrid is of one thread.

#ifndef REPRISE_DISTRIBUTED_RANK_GRID_H_
#define REPRISE_DISTRIBUTED_RANK_GRID_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

// Where a rank stands: among those it divides weights with, and among those it divides keys with.
struct GridPlace {
  Ranks weights;
  Ranks context;

  friend bool operator==(const GridPlace&, const GridPlace&) = default;
};

// InvalidArgument, naming context_ranks, unless it is in [1, world] and divides world.
absl::Status CheckGrid(int world, int context_ranks);

// REQUIRES: CheckGrid(all.world, context_ranks).ok().
GridPlace PlaceInGrid(const Ranks& all, int context_ranks);

// The ranks of `all` that divide weights, or keys, with this one, itself among them, in their order.
// REQUIRES: as above.
std::vector<int> WeightsGroup(const Ranks& all, int context_ranks);
std::vector<int> ContextGroup(const Ranks& all, int context_ranks);

// The Collectives of one rank of a grid: ConnectGrid() (distributed/process_group.h) makes them. When
// one of the three has failed, all have. Calls of the three are one order of calls, which is the same
// on all ranks of each group.
class RankGrid {
 public:
  // Groups that are null are `all` where they are of all ranks, else OneRank(). REQUIRES:
  // CheckGrid(all->ranks().world, context_ranks).ok(), and groups of the sizes of that grid.
  RankGrid(std::unique_ptr<Collectives> all, int context_ranks,
           std::unique_ptr<Collectives> weights = nullptr,
           std::unique_ptr<Collectives> context = nullptr);

  // For RankOptions::collectives and the engine.
  Collectives& all() { return *all_; }
  // For the model: the ranks that divide its weights, and those that divide the keys.
  Collectives& weights() { return weights_ == nullptr ? *all_ : *weights_; }
  Collectives& context() { return context_ == nullptr ? *all_ : *context_; }

 private:
  std::unique_ptr<Collectives> all_;
  std::unique_ptr<Collectives> weights_;  // null: all_
  std::unique_ptr<Collectives> context_;  // null: all_
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_RANK_GRID_H_
