// Golden models that are divided over ranks. Checks give a Status, so that ranks can be threads or
// processes.
//
//   RunThreadRanks(4, [&](Collectives& collectives) {
//     return CheckShardedGolden(golden, collectives, c10::kCPU, {.tolerance = 5e-4});
//   });

#ifndef TESTS_GOLDEN_GOLDEN_RANKS_H_
#define TESTS_GOLDEN_GOLDEN_RANKS_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_runner.h"

namespace reprise {

struct ShardedGoldenCheck {
  double tolerance = 0;  // of each logit, in float32
  // In 16 bits the errors are as CheckSmall() wants them (tests/golden/sixteen_bits.h), where
  // experts are chosen as one rank does in float32; and greedy requests are not run.
  DType dtype = DType::kFloat32;
  MlaCache mla_cache = MlaCache::kLatent;
  bool replays = true;  // whether some steps must be replays
  // What the ranks divide: weights and heads, or the keys of each sequence.
  enum class Sharded : int8_t { kWeights, kContext } sharded = Sharded::kWeights;
  bool preempts = false;  // whether some sequence must be preempted
};

// On every rank: loads its part of the model on `device` and runs both tracks of every prompt, and
// in float32 the greedy requests. Internal on rank 0 if logits are off by more than `check` allows,
// if a greedy token is another one before the first margin below 1e-3, or if the run was not as
// `check` says. Else errors: those of LoadGoldenModel(), RunGolden() and FollowGolden().
absl::Status CheckShardedGolden(const Golden& golden, Collectives& collectives, c10::Device device,
                                const ShardedGoldenCheck& check, GoldenRunOptions options);

// The same on a grid, whose groups divide weights and keys; check.divided is ignored.
absl::Status CheckShardedGolden(const Golden& golden, RankGrid& grid, c10::Device device,
                                const ShardedGoldenCheck& check, GoldenRunOptions options);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_RANKS_H_
