// Runs golden prompts through a model's engine under varied conditions that must not change the
// results.
//
//   const GoldenPrompt& prompt = golden.prompts[0];
//   const Request request = ForcedRequest(prompt, prompt.forced);
//   REPRISE_ASSIGN_OR_RETURN(GoldenRun run, RunGolden(*model, {request}, {.block_size = 5}));
//   MaxError(run.tracks[0].logits, prompt.forced.AllLogits());

#ifndef TESTS_GOLDEN_GOLDEN_RUNNER_H_
#define TESTS_GOLDEN_GOLDEN_RUNNER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/decode/prompt.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/distributed/collectives.h"
#include "reprise/engine/request.h"
#include "reprise/graphs/graph_report.h"
#include "reprise/graphs/graph_set_options.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/model_runner_options.h"
#include "tests/golden/golden.h"

namespace reprise {

struct GoldenRunOptions {
  GraphSetOptions::Mode graphs = GraphSetOptions::Mode::kLazy;
  std::vector<int> graph_sizes = {};             // empty: the runner's own
  std::optional<MixedGraphs> mixed_graphs = {};  // nullopt: the device's
  int max_num_seqs = 16;
  int block_size = 16;
  std::optional<int> num_blocks = {};
  int prefill_chunk = 0;               // 0: whole
  std::optional<DType> kv_dtype = {};  // nullopt: the model's
  KvOrder kv_order = KvOrder::kNHD;
  KvForm kv_form = KvForm::kPair;
  enum class Batching {
    kTogether,  // all requests at once
    kAlone,     // one after the other
  } batching = Batching::kTogether;
  Collectives* collectives = nullptr;  // of a model that is divided over ranks
  bool shards_context = false;         // and whether they divide the keys
  int context_interleave = 1;
  int context_ranks = 0;  // of a grid; 0: all
};

// The result of a request.
struct RunTrack {
  TokenList tokens = {};
  std::vector<float> logits = {};  // [number of tokens, vocab_size]
};

struct GoldenRun {
  // One per request, in their order.
  std::vector<RunTrack> tracks;
  GraphReport report;
  int64_t num_preemptions = 0;
  int peak_used_blocks = 0;
};

// A request for as many tokens as the golden has, sampled greedily.
Request GreedyRequest(const GoldenPrompt& prompt);
// A request that is fed the first `num_tokens` tokens of a track in place of sampled ones.
Request ForcedRequest(const GoldenPrompt& prompt, const GoldenTrack& track);
Request ForcedRequest(const GoldenPrompt& prompt, const GoldenTrack& track, int num_tokens);
// The same with the track's first tokens in the prompt. REQUIRES: fewer than it has.
Request PromptedRequest(const GoldenPrompt& prompt, const GoldenTrack& track, int num_prompted);

// Runs the requests in a new engine and records the logits of every token. Errors: those of the
// engine.
absl::StatusOr<GoldenRun> RunGolden(Model& model, absl::Span<const Request> requests,
                                    const GoldenRunOptions& options);

// On the other ranks, with the same arguments: returns when rank 0's RunGolden() does. Errors:
// those of FollowEngine().
absl::Status FollowGolden(Model& model, absl::Span<const Request> requests,
                          const GoldenRunOptions& options);

// The same so many times in one engine, whose graphs are captured once. `before` is called before
// each round, when no sequence has keys and none is found again.
absl::StatusOr<std::vector<GoldenRun>> RunGoldenRounds(
    Model& model, absl::Span<const Request> requests, const GoldenRunOptions& options,
    int num_rounds, const std::function<void(const ModelRunner& runner, int round)>& before);

}  // namespace reprise

#endif  // TESTS_GOLDEN_GOLDEN_RUNNER_H_
