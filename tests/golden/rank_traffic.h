// Requests that make an engine over ranks preempt, swap, find prefixes and cancel.
//
//   RunThreadGrid(4, 2, [&](RankGrid& grid) -> absl::Status {
//     REPRISE_ASSIGN_OR_RETURN(const TrafficTexts texts, TrafficOverRanks(grid, c10::kCPU));
//     ...
//   });

#ifndef TESTS_GOLDEN_RANK_TRAFFIC_H_
#define TESTS_GOLDEN_RANK_TRAFFIC_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/distributed/rank_grid.h"

namespace reprise {

// By request; those that were cancelled end in -1.
using TrafficTexts = std::map<int64_t, std::vector<int32_t>>;

// On every rank of a grid: loads its part of the golden model qwen2 in float32 and runs the
// requests, more than the cache holds, of which every third is cancelled after some steps. Rank 0
// returns the texts, which are those of any grid, the others none. Adds failures to the test of
// this process if no sequence was preempted, found a prefix, was replayed or was cancelled. Errors:
// those of LoadModel() and the engine.
absl::StatusOr<TrafficTexts> TrafficOverRanks(RankGrid& grid, c10::Device device);

}  // namespace reprise

#endif  // TESTS_GOLDEN_RANK_TRAFFIC_H_
