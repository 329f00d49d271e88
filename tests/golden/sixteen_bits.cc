#include "tests/golden/sixteen_bits.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/all.h>
#include <ATen/ops/cumprod.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/base/status_macros.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/routed_model.h"

namespace reprise {
namespace {

// A run of both tracks, with the experts of all inputs of each, [inputs, all layers'].
struct RoutedRun {
  GoldenRun run;
  std::vector<at::Tensor> experts;
};

absl::StatusOr<RoutedRun> RunRouted(Model& model, const Golden& golden,
                                    const GoldenRunOptions& options) {
  std::vector<Request> requests = TrackRequests(golden);
  // Each computes its whole prompt itself.
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prefix_salt = std::to_string(i);
  RoutedModel routed(&model, options.max_num_seqs);
  RoutedRun result;
  REPRISE_ASSIGN_OR_RETURN(result.run, RunGolden(routed, requests, options));
  for (const std::vector<int32_t>& input : TrackInputs(golden)) {
    result.experts.push_back(routed.ExpertsOf(input));
    if (result.experts.back().defined()) continue;
    return absl::InternalError(
        absl::StrCat(TrackName(static_cast<int>(result.experts.size()) - 1), " was not routed"));
  }
  return result;
}

// How many positions, from the first, have the same experts.
absl::StatusOr<int64_t> NumAgreeing(const at::Tensor& experts, const at::Tensor& others) {
  if (experts.sizes() != others.sizes()) {
    return absl::InternalError("the routings are of other inputs or models");
  }
  const at::Tensor agrees = (experts == others).all(1);
  return agrees.cumprod(0, at::kLong).sum().item<int64_t>();
}

SixteenBitError ErrorOf(absl::Span<const float> logits, const GoldenTrack& track, int count) {
  const GoldenLogits expected = track.LogitsBefore(0, count);
  if (track.bf16_median.has_value()) {
    return {.rms = MedianError(logits, expected),
            .allowed = 2 * *track.bf16_median,
            .num_positions = count};
  }
  return {.rms = RmsError(logits, expected), .allowed = 2 * track.bf16_rms, .num_positions = count};
}

}  // namespace

std::vector<Request> TrackRequests(const Golden& golden) {
  std::vector<Request> requests;
  for (const GoldenPrompt& prompt : golden.prompts) {
    requests.push_back(ForcedRequest(prompt, prompt.greedy));
    requests.push_back(ForcedRequest(prompt, prompt.forced));
  }
  return requests;
}

const GoldenTrack& TrackOf(const Golden& golden, int request) {
  const GoldenPrompt& prompt = golden.prompts[request / 2];
  return request % 2 == 0 ? prompt.greedy : prompt.forced;
}

std::string TrackName(int request) {
  return absl::StrCat("prompt ", request / 2, request % 2 == 0 ? ", greedy" : ", random", " track");
}

std::vector<std::vector<int32_t>> TrackInputs(const Golden& golden) {
  std::vector<std::vector<int32_t>> inputs;
  for (const GoldenPrompt& prompt : golden.prompts) {
    for (const GoldenTrack* const track : {&prompt.greedy, &prompt.forced}) {
      std::vector<int32_t> tokens(prompt.prompt.begin(), prompt.prompt.end());
      tokens.insert(tokens.end(), track->tokens.begin(), track->tokens.end() - 1);
      inputs.push_back(std::move(tokens));
    }
  }
  return inputs;
}

absl::StatusOr<std::vector<at::Tensor>> GoldenRouting(Model& model, const Golden& golden,
                                                      const GoldenRunOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(RoutedRun routed, RunRouted(model, golden, options));
  return std::move(routed.experts);
}

absl::StatusOr<SixteenBitRun> RunSixteenBits(Model& model, const Golden& golden,
                                             const GoldenRunOptions& options,
                                             const std::vector<at::Tensor>& routing) {
  if (golden.has_bf16_medians && !routing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("routing must be empty for ", golden.name, ", which is judged by medians"));
  }
  RoutedRun routed;
  if (routing.empty()) {
    REPRISE_ASSIGN_OR_RETURN(routed.run, RunGolden(model, TrackRequests(golden), options));
  } else {
    REPRISE_ASSIGN_OR_RETURN(routed, RunRouted(model, golden, options));
  }
  SixteenBitRun result;
  for (size_t i = 0; i < routed.run.tracks.size(); ++i) {
    const int request = static_cast<int>(i);
    const GoldenTrack& track = TrackOf(golden, request);
    if (routed.run.tracks[i].tokens != track.tokens) {
      return absl::InternalError(absl::StrCat(TrackName(request), ": other tokens"));
    }
    int count = static_cast<int>(track.tokens.size());
    if (!routing.empty()) {
      REPRISE_ASSIGN_OR_RETURN(const int64_t num_agreeing,
                               NumAgreeing(routed.experts[i], routing[i]));
      const int64_t num_others = routing[i].size(0) - count;  // of the prompt, without logits
      count = static_cast<int>(std::max<int64_t>(num_agreeing - num_others, 0));
    }
    // As many as were computed: RmsError() of too few is infinite.
    absl::Span<const float> logits = routed.run.tracks[i].logits;
    if (count < static_cast<int>(track.tokens.size())) {
      logits = logits.subspan(0, size_t{1} * count * track.vocab_size);
    }
    result.errors.push_back(ErrorOf(logits, track, count));
  }
  result.run = std::move(routed.run);
  return result;
}

absl::Status CheckSmall(const std::vector<SixteenBitError>& errors, const Golden& golden,
                        int max_to_one) {
  std::string large;
  size_t num_positions = 0;
  size_t num_judged = 0;
  for (size_t i = 0; i < errors.size(); ++i) {
    const int request = static_cast<int>(i);
    if (!(errors[i].rms <= errors[i].allowed)) {
      absl::StrAppend(&large, "; ", TrackName(request), ": an rms error of ", errors[i].rms,
                      " in the first ", errors[i].num_positions, " positions, expected at most ",
                      errors[i].allowed);
    }
    num_positions += TrackOf(golden, request).tokens.size();
    num_judged += errors[i].num_positions;
  }
  if (!large.empty()) return absl::InternalError(absl::StrCat("logits in 16 bits", large));
  if (max_to_one * num_judged >= num_positions) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the routing agrees in ", num_judged, " of ",
                                          num_positions, " positions, too few for a test"));
}

}  // namespace reprise
