// What the runners of several ranks must have in common to run the same steps, as text.
//
//   REPRISE_RETURN_IF_ERROR(
//       CheckSameTextOverRanks(collectives, RankOptionsText(resolved, model->spec())));
//
// Thread safety: one thread a Collectives.

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

// A line `name=value` for each option and each field of the spec that decides which steps are run,
// captured or sampled, and in which precision; the names are those of the fields. Left out is what
// ranks may have of their own: the index of the device, their share of the heads, sinks, the size of
// the cache (ranks agree on the least), the stream, the trace and the file of choices.
// REQUIRES: `options` are resolved (ResolveRunnerOptions()).
std::string RankOptionsText(const ModelRunnerOptions& options, const ModelSpec& spec);

// `cascade`, or kOff on all ranks if their layers, this rank's among them, have unlike numbers of heads:
// from how many rows on it pays follows from these, and ranks must capture and replay the same steps.
// Errors: those of AllGather().
absl::StatusOr<CascadeMode> CascadeOverRanks(Collectives* collectives, CascadeMode cascade,
                                             absl::Span<const LayerSpec> layers);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_RANK_OPTIONS_H_
