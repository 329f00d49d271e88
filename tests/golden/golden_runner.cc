#include "tests/golden/golden_runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

ModelEngineOptions EngineOptionsFor(absl::Span<const Request> requests,
                                    const GoldenRunOptions& options) {
  size_t longest = 1;
  size_t longest_input = 0;
  for (const Request& request : requests) {
    longest_input = std::max(longest_input, request.encoder_tokens.size());
    longest =
        std::max(longest, request.prompt.size() + static_cast<size_t>(request.max_new_tokens));
  }
  std::optional<int> max_encoder_tokens;
  if (longest_input > 0) max_encoder_tokens = static_cast<int>(longest_input);
  return {
      .runner = {.max_num_seqs = options.max_num_seqs,
                 .max_num_tokens = 2048,  // all prompts in one step
                 .max_seq_len = static_cast<int>(longest),
                 .max_encoder_tokens = max_encoder_tokens,
                 .max_steps_in_flight = 1,  // logits are read after every step
                 .cache = {.block_size = options.block_size,
                           .size = options.num_blocks ? BlockMemory(NumBlocks{*options.num_blocks})
                                                      : BlockMemory(),
                           .dtype = options.kv_dtype,
                           .order = options.kv_order,
                           .form = options.kv_form},
                 .graphs = {.mode = options.graphs,
                            .sizes = options.graph_sizes,
                            .mixed = options.mixed_graphs},
                 .ranks = {.collectives = options.collectives,
                           .context_ranks = options.shards_context ? options.context_ranks : 1},
                 .debug = {.context_interleave = options.context_interleave}},
      .scheduler = {.prefill_chunk = options.prefill_chunk}};
}

absl::StatusOr<GoldenRun> RunIn(Engine& engine, absl::Span<const Request> requests,
                                const GoldenRunOptions& options) {
  const int num_requests = static_cast<int>(requests.size());
  GoldenRun run;
  run.tracks.resize(requests.size());
  LogitsRecorder recorder(num_requests);
  const auto run_some = [&](int begin, int count) {
    return Generate(engine, requests.subspan(begin, count),
                    [&](int request, const TokenEvent& event) {
                      run.tracks[begin + request].tokens.push_back(*event.token);
                      return recorder.Record(begin + request, *LogitsOf(engine, event));
                    });
  };
  if (options.batching == GoldenRunOptions::Batching::kTogether) {
    REPRISE_RETURN_IF_ERROR(run_some(0, num_requests));
  } else {
    for (int i = 0; i < num_requests; ++i) REPRISE_RETURN_IF_ERROR(run_some(i, 1));
  }
  for (int i = 0; i < num_requests; ++i) {
    run.tracks[i].logits.assign(recorder.rows(i).begin(), recorder.rows(i).end());
  }
  run.report = ModelRunnerOf(engine).graph_report();
  run.num_preemptions = engine.scheduler().num_preemptions();
  run.peak_used_blocks = engine.scheduler().blocks().pool().peak_used();
  return run;
}

}  // namespace

Request GreedyRequest(const GoldenPrompt& prompt) {
  return {.prompt = prompt.prompt,
          .encoder_tokens = prompt.encoder_tokens,
          .max_new_tokens = static_cast<int>(prompt.greedy.tokens.size())};
}

Request ForcedRequest(const GoldenPrompt& prompt, const GoldenTrack& track) {
  return ForcedRequest(prompt, track, static_cast<int>(track.tokens.size()));
}

Request ForcedRequest(const GoldenPrompt& prompt, const GoldenTrack& track, int num_tokens) {
  return {.prompt = prompt.prompt,
          .encoder_tokens = prompt.encoder_tokens,
          .max_new_tokens = num_tokens,
          .forced_tokens = {track.tokens.begin(), track.tokens.begin() + num_tokens}};
}

Request PromptedRequest(const GoldenPrompt& prompt, const GoldenTrack& track, int num_prompted) {
  Request request = ForcedRequest(prompt, track);
  const auto first = request.forced_tokens.begin();
  request.prompt.insert(request.prompt.end(), first, first + num_prompted);
  request.forced_tokens.erase(first, first + num_prompted);
  request.max_new_tokens -= num_prompted;
  return request;
}

absl::StatusOr<GoldenRun> RunGolden(Model& model, absl::Span<const Request> requests,
                                    const GoldenRunOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateEngine(&model, EngineOptionsFor(requests, options)));
  return RunIn(*engine, requests, options);
}

absl::Status FollowGolden(Model& model, absl::Span<const Request> requests,
                          const GoldenRunOptions& options) {
  return FollowEngine(&model, EngineOptionsFor(requests, options));
}

absl::StatusOr<std::vector<GoldenRun>> RunGoldenRounds(
    Model& model, absl::Span<const Request> requests, const GoldenRunOptions& options,
    int num_rounds, const std::function<void(const ModelRunner& runner, int round)>& before) {
  ModelEngineOptions engine_options = EngineOptionsFor(requests, options);
  engine_options.scheduler.prefix_reuse = PrefixReuse::kOff;
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateEngine(&model, engine_options));
  std::vector<GoldenRun> runs;
  for (int round = 0; round < num_rounds; ++round) {
    before(ModelRunnerOf(*engine), round);
    REPRISE_ASSIGN_OR_RETURN(runs.emplace_back(), RunIn(*engine, requests, options));
  }
  return runs;
}

}  // namespace reprise
