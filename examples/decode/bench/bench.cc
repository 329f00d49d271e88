#include "examples/decode/bench/bench.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/decode/requests.h"
#include "nlohmann/json.hpp"
#include "reprise/base/ids.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::vector<int32_t> RandomTokens(int count, int vocab_size, std::mt19937& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size));
  }
  return tokens;
}

// The engine of all points.
ModelEngineOptions BenchEngineOptions(const DecodeOptions& options, int max_position) {
  const BenchChoice& bench = options.bench;
  DecodeOptions serving = options;
  serving.engine.runner.max_num_seqs =
      *std::max_element(bench.batches.begin(), bench.batches.end());
  serving.engine.scheduler.prefix_reuse = PrefixReuse::kOff;
  const int context = *std::max_element(bench.contexts.begin(), bench.contexts.end());
  // Longer than any can become is shortened to the model's positions.
  ModelEngineOptions engine = ServingEngineOptions(serving, max_position);
  const BenchPoint largest = {serving.engine.runner.max_num_seqs, context, bench.num_tokens};
  const int64_t longest =
      int64_t{context} + MaxNewTokens(largest, MinPromptTokens(engine, largest.batch),
                                      engine.runner.speculation.max_drafts);
  engine.runner.max_seq_len = static_cast<int>(std::min<int64_t>(longest, max_position));
  engine.runner.logits = {};
  return engine;
}

absl::Status CheckContexts(const BenchChoice& bench, int max_position) {
  for (const int context : bench.contexts) {
    if (int64_t{context} + bench.num_tokens <= max_position) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--contexts: expected at most ", max_position - bench.num_tokens, ", so that --num_tokens ",
        bench.num_tokens, " fit into the model's ", max_position, " positions, got ", context));
  }
  return absl::OkStatus();
}

}  // namespace

double BenchResult::prompt_tokens_per_second() const {
  return PerSecond(num_prompt_tokens, prompt_seconds);
}
double BenchResult::tokens_per_second() const { return PerSecond(num_decoded, decode_seconds); }
double BenchResult::ms_per_token() const {
  if (num_decoded == 0) return 0;
  return 1000 * decode_seconds * point.batch / static_cast<double>(num_decoded);
}

int MinPromptTokens(const ModelEngineOptions& engine, int batch) {
  const int beside_decodes = std::max(engine.runner.max_num_tokens - batch, 1);
  const int limit = engine.scheduler.max_prefill_tokens_while_decoding;
  return limit == 0 ? beside_decodes : std::min(limit, beside_decodes);
}

int PromptSteps(const BenchPoint& point, int prompt_tokens) {
  const int64_t num_tokens = int64_t{point.batch} * point.context;
  const int64_t num_chunks = (num_tokens + prompt_tokens - 1) / prompt_tokens;
  return static_cast<int>(std::min<int64_t>(num_chunks + point.batch, int64_t{1} << 24));
}

int MaxNewTokens(const BenchPoint& point, int prompt_tokens, int num_drafts) {
  const int64_t num_steps = int64_t{point.num_tokens} + PromptSteps(point, prompt_tokens);
  return static_cast<int>(std::min<int64_t>(num_steps * (1 + num_drafts), int64_t{1} << 30));
}

absl::StatusOr<BenchResult> MeasurePoint(Engine& engine, const BenchPoint& point, int vocab_size,
                                         int max_new_tokens,
                                         const std::function<absl::Time()>& clock) {
  BenchResult result = {.point = point, .num_prompt_tokens = int64_t{point.batch} * point.context};
  std::mt19937 random(static_cast<uint32_t>(point.batch * 65537 + point.context));
  std::vector<SequenceId> ids;
  for (int i = 0; i < point.batch; ++i) {
    REPRISE_ASSIGN_OR_RETURN(ids.emplace_back(),
                             engine.Add({.prompt = RandomTokens(point.context, vocab_size, random),
                                         .max_new_tokens = max_new_tokens}));
  }
  const int64_t wanted = int64_t{point.batch} * point.num_tokens;
  int num_begun = 0;
  const SpeculationStatistics drafts_before = engine.metrics().speculation;
  const absl::Time begin = clock();
  absl::Time decodes = begin;
  std::vector<TokenEvent> events;
  bool is_done = false;
  while (!is_done) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    const bool all_run = num_begun == point.batch;
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      if (event.index == 0) ++num_begun;
      if (all_run) ++result.num_decoded;
      is_done |= event.finish != FinishReason::kNone;
    }
    if (!all_run && num_begun == point.batch) {
      decodes = clock();
      result.prompt_seconds = absl::ToDoubleSeconds(decodes - begin);
    }
    is_done |= result.num_decoded >= wanted;
    if (!is_done && !engine.has_work()) break;
  }
  result.decode_seconds = absl::ToDoubleSeconds(clock() - decodes);
  const SpeculationStatistics drafts = engine.metrics().speculation;
  result.num_drafts = drafts.num_drafts - drafts_before.num_drafts;
  result.num_accepted = drafts.num_accepted - drafts_before.num_accepted;
  events.clear();
  for (const SequenceId id : ids) {
    const absl::Status cancelled = engine.Cancel(id, events);
    if (!cancelled.ok() && !absl::IsNotFound(cancelled)) return cancelled;
  }
  while (engine.has_work()) {  // steps in flight
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
  }
  if (num_begun < point.batch || result.num_decoded == 0) {
    return absl::InternalError(
        absl::StrCat("sequences have ended before they were measured: ", num_begun, " of ",
                     point.batch, " have begun; give a larger cache"));
  }
  return result;
}

std::string BenchHeading() {
  return absl::StrFormat("%6s %8s %16s %16s %12s\n", "batch", "context", "prompt tokens/s",
                         "decode tokens/s", "ms a token");
}

std::string BenchRow(const BenchResult& result) {
  return absl::StrFormat("%6d %8d %16.1f %16.1f %12.3f\n", result.point.batch, result.point.context,
                         result.prompt_tokens_per_second(), result.tokens_per_second(),
                         result.ms_per_token());
}

std::string ToJson(const BenchResult& result) {
  return nlohmann::ordered_json{{"batch", result.point.batch},
                                {"context", result.point.context},
                                {"prompt_tokens_per_s", result.prompt_tokens_per_second()},
                                {"decode_tokens_per_s", result.tokens_per_second()},
                                {"ms_per_token", result.ms_per_token()},
                                {"decoded_tokens", result.num_decoded},
                                {"drafts", result.num_drafts},
                                {"accepted_drafts", result.num_accepted}}
      .dump();
}

absl::Status RunBench(const DecodeOptions& options, const BenchStreams& streams, RankOfRun rank) {
  ProgressLine progress(streams.err, streams.progress);
  const auto options_of = [&](const ModelFolder& folder) -> absl::StatusOr<ModelEngineOptions> {
    if (std::holds_alternative<BartConfig>(folder.config)) {
      return absl::InvalidArgumentError(
          absl::StrCat("bench: expected a model without an encoder, got ", folder.path));
    }
    REPRISE_RETURN_IF_ERROR(CheckContexts(options.bench, folder.max_seq_len()));
    return BenchEngineOptions(options, folder.max_seq_len());
  };
  REPRISE_ASSIGN_OR_RETURN(const DecodeModels loaded,
                           DecodeModels::Load(options, rank, progress, options_of));
  if (rank.follows()) return loaded.Follow();
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, loaded.MakeEngine());
  const ModelEngineOptions& engine_options = loaded.engine_options;
  const int vocab_size = static_cast<int>(loaded.model->spec().vocab_size);
  const int num_drafts = engine_options.runner.speculation.max_drafts;
  const bool is_json = options.output == OutputChoice::kJson;
  const auto measure = [&](const BenchPoint& point) {
    progress.Show(absl::StrCat("batch ", point.batch, ", context ", point.context));
    return MeasurePoint(
        *engine, point, vocab_size,
        MaxNewTokens(point, MinPromptTokens(engine_options, point.batch), num_drafts));
  };
  const int largest = engine_options.runner.max_num_seqs;
  REPRISE_RETURN_IF_ERROR(
      measure({largest,
               *std::min_element(options.bench.contexts.begin(), options.bench.contexts.end()), 1})
          .status());
  progress.Clear();
  if (!is_json) streams.out << BenchHeading() << std::flush;
  for (const int context : options.bench.contexts) {
    for (const int batch : options.bench.batches) {
      REPRISE_ASSIGN_OR_RETURN(const BenchResult result,
                               measure({batch, context, options.bench.num_tokens}));
      progress.Clear();
      streams.out << (is_json ? ToJson(result) + "\n" : BenchRow(result)) << std::flush;
    }
  }
  if (!streams.out.good()) return absl::InternalError("standard output could not be written");
  return absl::OkStatus();
}

}  // namespace reprise
