#include "reprise/distributed/rank_grid.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status CheckGrid(int world, int context_ranks) {
  if (context_ranks >= 1 && context_ranks <= world && world % context_ranks == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("context_ranks must divide the number of ranks, ",
                                                 world, ": got ", context_ranks));
}

GridCoordinates CoordinatesInGrid(const Ranks& all, int context_ranks) {
  const int weights_ranks = all.world / context_ranks;
  return {.weights = {.rank = all.rank % weights_ranks, .world = weights_ranks},
          .context = {.rank = all.rank / weights_ranks, .world = context_ranks}};
}

std::vector<int> WeightsGroup(const Ranks& all, int context_ranks) {
  const GridCoordinates place = CoordinatesInGrid(all, context_ranks);
  std::vector<int> group;
  for (int rank = 0; rank < place.weights.world; ++rank) {
    group.push_back(place.context.rank * place.weights.world + rank);
  }
  return group;
}

std::vector<int> ContextGroup(const Ranks& all, int context_ranks) {
  const GridCoordinates place = CoordinatesInGrid(all, context_ranks);
  std::vector<int> group;
  for (int rank = 0; rank < place.context.world; ++rank) {
    group.push_back(rank * place.weights.world + place.weights.rank);
  }
  return group;
}

RankGrid::RankGrid(std::unique_ptr<Collectives> all, int context_ranks,
                   std::unique_ptr<Collectives> weights, std::unique_ptr<Collectives> context)
    : all_(std::move(all)), weights_(std::move(weights)), context_(std::move(context)) {
  const int world = all_->ranks().world;
  if (weights_ == nullptr && context_ranks != 1) weights_ = OneRank();
  if (context_ == nullptr && context_ranks != world) context_ = OneRank();
}

}  // namespace reprise
