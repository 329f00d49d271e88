// The options that all ranks must have in common to run the same steps, as text.
//
//   REPRISE_RETURN_IF_ERROR(
//       CheckSameTextOverRanks(collectives, RankOptionsText(resolved, model->spec())));
//
// Thread safety: one thread per Collectives.

#ifndef REPRISE_RUNNER_RANKS_RANK_OPTIONS_H_
#define REPRISE_RUNNER_RANKS_RANK_OPTIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner_options.h"

namespace reprise {

// Returns a line `name=value` for each option and each field of the spec that affects which steps
// are run, captured or sampled, or the dtypes of their data. Excludes values that may differ
// between ranks: the device index, the costs of tile schedules, the rank's share of the heads,
// sinks, the cache size (ranks use the smallest), the stream, the trace and the file of choices.
// REQUIRES: `options` are resolved (ResolveRunnerOptions()).
std::string RankOptionsText(const ModelRunnerOptions& options, const ModelSpec& spec);

// Returns `cascade`, or kOff on all ranks if the numbers of heads differ between ranks. The number
// of rows from which a cascade is faster depends on the numbers of heads, and all ranks must
// capture and replay the same steps. Errors: as AllGather().
absl::StatusOr<CascadeMode> CascadeOverRanks(Collectives* collectives, CascadeMode cascade,
                                             absl::Span<const LayerSpec> layers);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_RANK_OPTIONS_H_
