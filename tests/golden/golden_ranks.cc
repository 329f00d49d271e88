#include "tests/golden/golden_ranks.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/engine/request.h"
#include "reprise/runner/model.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/sixteen_bits.h"

namespace reprise {
namespace {

absl::Status CheckTrack(const RunTrack& got, const GoldenTrack& track, double tolerance) {
  if (got.tokens != track.tokens) return absl::InternalError("other tokens than the track's");
  const double error = MaxError(got.logits, track.AllLogits());
  if (error <= tolerance) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("logits: expected an error of at most ", tolerance, ", got ", error));
}

// Three requests a prompt: both tracks, and greedily.
absl::Status CheckFloat32(const Golden& golden, const GoldenRun& run, double tolerance) {
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    REPRISE_RETURN_IF_ERROR(CheckTrack(run.tracks[3 * i], prompt.greedy, tolerance));
    REPRISE_RETURN_IF_ERROR(CheckTrack(run.tracks[3 * i + 1], prompt.forced, tolerance));
    const int num_equal = NumEqualTokens(run.tracks[3 * i + 2].tokens, prompt.greedy);
    if (const int expected = NumDecidedTokens(prompt, 1e-3f); num_equal < expected) {
      return absl::InternalError(absl::StrCat("greedy tokens of prompt ", i, ": expected ",
                                              expected, " equal ones, got ", num_equal));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRun(const GoldenRun& run, const ShardedGoldenCheck& check) {
  if ((run.report.num_replays() > 0) != check.replays) {
    return absl::InternalError(absl::StrCat("replays: got ", run.report.num_replays()));
  }
  if (check.preempts && run.num_preemptions == 0) {
    return absl::InternalError("expected that a sequence is preempted");
  }
  return absl::OkStatus();
}

// Returns the experts that one rank chooses in float32, or an empty list if the test needs no
// routing.
absl::StatusOr<std::vector<at::Tensor>> RoutingFor(const Model& model, const Golden& golden,
                                                   c10::Device device, MlaCache mla_cache) {
  if (!NeedsRouting(model, golden)) return std::vector<at::Tensor>();
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> exact,
                           LoadGoldenModel(golden, device, DType::kFloat32, mla_cache));
  return GoldenRouting(*exact, golden, {});
}

// The groups of a rank. Null: none but the rank itself.
struct Groups {
  Collectives* all = nullptr;
  Collectives* weights = nullptr;
  Collectives* context = nullptr;
};

absl::Status CheckGroups(const Golden& golden, const Groups& groups, c10::Device device,
                         const ShardedGoldenCheck& check, GoldenRunOptions options) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           LoadGoldenModel(golden, device, check.dtype, check.mla_cache,
                                           groups.weights, groups.context));
  options.collectives = groups.all;
  options.shards_context = groups.context != nullptr;
  options.context_ranks = RanksOf(groups.context).world;
  const bool is_first = groups.all->ranks().rank == 0;
  if (check.dtype != DType::kFloat32) {
    if (!is_first) return FollowGolden(*model, TrackRequests(golden), options);
    REPRISE_ASSIGN_OR_RETURN(const std::vector<at::Tensor> routing,
                             RoutingFor(*model, golden, device, check.mla_cache));
    REPRISE_ASSIGN_OR_RETURN(const SixteenBitRun run,
                             RunSixteenBits(*model, golden, options, routing));
    REPRISE_RETURN_IF_ERROR(CheckSmall(run.errors, golden, kPositionsToOneOverRanks));
    return CheckRun(run.run, check);
  }
  std::vector<Request> requests;
  for (const GoldenPrompt& prompt : golden.prompts) {
    requests.push_back(ForcedRequest(prompt, prompt.greedy));
    requests.push_back(ForcedRequest(prompt, prompt.forced));
    requests.push_back(GreedyRequest(prompt));
  }
  if (!is_first) return FollowGolden(*model, requests, options);
  REPRISE_ASSIGN_OR_RETURN(const GoldenRun run, RunGolden(*model, requests, options));
  REPRISE_RETURN_IF_ERROR(CheckFloat32(golden, run, check.tolerance));
  return CheckRun(run, check);
}

}  // namespace

absl::Status CheckShardedGolden(const Golden& golden, Collectives& collectives, c10::Device device,
                                const ShardedGoldenCheck& check, GoldenRunOptions options) {
  const bool shards_context = check.sharded == ShardedGoldenCheck::Sharded::kContext;
  const Groups groups = {.all = &collectives,
                         .weights = shards_context ? nullptr : &collectives,
                         .context = shards_context ? &collectives : nullptr};
  return CheckGroups(golden, groups, device, check, options);
}

absl::Status CheckShardedGolden(const Golden& golden, RankGrid& grid, c10::Device device,
                                const ShardedGoldenCheck& check, GoldenRunOptions options) {
  const Groups groups = {
      .all = &grid.all(), .weights = &grid.weights(), .context = &grid.context()};
  return CheckGroups(golden, groups, device, check, options);
}

}  // namespace reprise
