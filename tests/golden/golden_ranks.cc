#include "tests/golden/golden_ranks.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "distributed/share.h"
#include "engine/request.h"
#include "runner/model.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/golden_model.h"

namespace reprise {
namespace {

absl::Status CheckTrack(const RunTrack& got, const GoldenTrack& track,
                        const DividedGoldenCheck& check) {
  if (got.tokens != track.tokens) return absl::InternalError("other tokens than the track's");
  const bool is_exact = check.dtype == DType::kFloat32;
  const double error =
      is_exact ? MaxError(got.logits, track.AllLogits()) : RmsError(got.logits, track.AllLogits());
  const double most = is_exact ? check.tolerance : 2 * track.bf16_rms;
  if (error <= most) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("logits: expected an error of at most ", most, ", got ", error));
}

// The groups of a rank. Null: none but the rank itself.
struct Groups {
  Collectives* all = nullptr;
  Collectives* weights = nullptr;
  Collectives* context = nullptr;
};

absl::Status CheckGroups(const Golden& golden, const Groups& groups, c10::Device device,
                         const DividedGoldenCheck& check, GoldenRunOptions options) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           LoadGoldenModel(golden, device, check.dtype, check.mla_cache,
                                           groups.weights, groups.context));
  std::vector<Request> requests;
  for (const GoldenPrompt& prompt : golden.prompts) {
    requests.push_back(ForcedRequest(prompt, prompt.greedy));
    requests.push_back(ForcedRequest(prompt, prompt.forced));
    requests.push_back(GreedyRequest(prompt));
  }
  options.collectives = groups.all;
  options.divides_context = groups.context != nullptr;
  options.context_ranks = RanksOf(groups.context).world;
  if (groups.all->ranks().rank != 0) return FollowGolden(*model, requests, options);
  REPRISE_ASSIGN_OR_RETURN(const GoldenRun run, RunGolden(*model, requests, options));
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    REPRISE_RETURN_IF_ERROR(CheckTrack(run.tracks[3 * i], prompt.greedy, check));
    REPRISE_RETURN_IF_ERROR(CheckTrack(run.tracks[3 * i + 1], prompt.forced, check));
    if (check.dtype != DType::kFloat32) continue;
    const int num_equal = NumEqualTokens(run.tracks[3 * i + 2].tokens, prompt.greedy);
    if (const int expected = NumDecidedTokens(prompt, 1e-3f); num_equal < expected) {
      return absl::InternalError(absl::StrCat("greedy tokens of prompt ", i, ": expected ",
                                              expected, " equal ones, got ", num_equal));
    }
  }
  if ((run.report.num_replays() > 0) != check.replays) {
    return absl::InternalError(absl::StrCat("replays: got ", run.report.num_replays()));
  }
  if (check.preempts && run.num_preemptions == 0) {
    return absl::InternalError("expected that a sequence is preempted");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDividedGolden(const Golden& golden, Collectives& collectives, c10::Device device,
                                const DividedGoldenCheck& check, GoldenRunOptions options) {
  const bool divides_context = check.divided == DividedGoldenCheck::Divided::kContext;
  const Groups groups = {.all = &collectives,
                         .weights = divides_context ? nullptr : &collectives,
                         .context = divides_context ? &collectives : nullptr};
  return CheckGroups(golden, groups, device, check, options);
}

absl::Status CheckDividedGolden(const Golden& golden, RankGrid& grid, c10::Device device,
                                const DividedGoldenCheck& check, GoldenRunOptions options) {
  const Groups groups = {
      .all = &grid.all(), .weights = &grid.weights(), .context = &grid.context()};
  return CheckGroups(golden, groups, device, check, options);
}

}  // namespace reprise
