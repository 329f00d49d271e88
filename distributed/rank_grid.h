// Ranks as a grid: weights are sharded over one dimension, and the keys of each sequence over the
// other (docs/distributed.md). Example of 4 ranks with 2 context ranks:
//
//   rank                  0       1       2       3
//   shards weights with   0, 1    0, 1    2, 3    2, 3      the ranks of a row
//   shards keys with      0, 2    1, 3    0, 2    1, 3      ranks of a column: same weights, heads
//
//   REPRISE_RETURN_IF_ERROR(CheckGrid(ranks.world, context_ranks));
//   const GridCoordinates place = CoordinatesInGrid(ranks, context_ranks);
//
// Thread safety: the functions are pure. A RankGrid must be used by one thread at a time.

#ifndef REPRISE_DISTRIBUTED_RANK_GRID_H_
#define REPRISE_DISTRIBUTED_RANK_GRID_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

// The coordinates of a rank: its rank and world size in its weights group and in its context group.
struct GridCoordinates {
  Ranks weights;
  Ranks context;

  friend bool operator==(const GridCoordinates&, const GridCoordinates&) = default;
};

// Returns InvalidArgument, naming context_ranks, unless context_ranks is in [1, world] and divides
// world.
absl::Status CheckGrid(int world, int context_ranks);

// Returns the coordinates of rank `all.rank`. REQUIRES: CheckGrid(all.world, context_ranks).ok().
GridCoordinates CoordinatesInGrid(const Ranks& all, int context_ranks);

// Return the members of this rank's weights group and context group, in increasing order. REQUIRES:
// as CoordinatesInGrid().
std::vector<int> WeightsGroup(const Ranks& all, int context_ranks);
std::vector<int> ContextGroup(const Ranks& all, int context_ranks);

// The Collectives of one rank of a grid, created by ConnectGrid() (distributed/process_group.h). If
// one of the three fails, all fail. The order of calls across all three groups must be the same on
// all ranks of each group.
class RankGrid {
 public:
  // A null group defaults to `all` if it spans all ranks, and to OneRank() otherwise. REQUIRES:
  // CheckGrid(all->ranks().world, context_ranks).ok(), and groups of the sizes of that grid.
  RankGrid(std::unique_ptr<Collectives> all, int context_ranks,
           std::unique_ptr<Collectives> weights = nullptr,
           std::unique_ptr<Collectives> context = nullptr);

  // For RankOptions::collectives and the engine.
  Collectives& all() { return *all_; }
  // For the model: the ranks that shard its weights, and the ranks that shard the keys.
  Collectives& weights() { return weights_ == nullptr ? *all_ : *weights_; }
  Collectives& context() { return context_ == nullptr ? *all_ : *context_; }

 private:
  std::unique_ptr<Collectives> all_;
  std::unique_ptr<Collectives> weights_;  // null: all_
  std::unique_ptr<Collectives> context_;  // null: all_
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_RANK_GRID_H_
