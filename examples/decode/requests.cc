#include "examples/decode/requests.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/decode/stop_text.h"
#include "graphs/graph_set_options.h"
#include "runner/sampling/logits_params.h"

namespace reprise {
namespace {

absl::StatusOr<TokenList> TokensOf(const Prompt& prompt, const ModelFolder& folder,
                                   const EncodeOptions& options = {}) {
  if (!prompt.is_text()) return std::get<TokenList>(prompt.content);
  if (!folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a text, but ", folder.path, " has no tokenizer.json: give token ids"));
  }
  return folder.tokenizer->Encode(std::get<std::string>(prompt.content), options);
}

// Tokens per prefill step. Large enough to be compute-bound, small enough to bound activations.
constexpr int kMaxTokens = 512;

int64_t LongestSequence(absl::Span<const Request> requests) {
  int64_t longest = 1;
  for (const Request& request : requests) {
    const int64_t num_new = request.forced_tokens.empty()
                                ? request.max_new_tokens
                                : static_cast<int64_t>(request.forced_tokens.size());
    longest = std::max(longest, static_cast<int64_t>(request.prompt.size()) + num_new);
  }
  return longest;
}

int64_t LongestEncoderInput(absl::Span<const Request> requests) {
  int64_t longest = 0;
  for (const Request& request : requests) {
    longest = std::max(longest, static_cast<int64_t>(request.encoder_tokens.size()));
  }
  return longest;
}

}  // namespace

absl::StatusOr<std::vector<Request>> MakeRequests(absl::Span<const Prompt> prompts,
                                                  const DecodeOptions& options,
                                                  const ModelFolder& folder) {
  if (!options.stops.empty() && !folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stop is a text, but ", folder.path, " has no tokenizer.json"));
  }
  std::vector<Request> requests;
  requests.reserve(prompts.size());
  for (const Prompt& prompt : prompts) {
    absl::StatusOr<TokenList> tokens = TokensOf(prompt, folder);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", requests.size() + 1, " ", tokens.status().message()));
    }
    Request request = {.prompt = {},
                       .max_new_tokens = options.max_new_tokens,
                       .sampling = options.sampling,
                       .num_log_probs = options.num_log_probs,
                       .forced_tokens = prompt.forced_tokens};
    if (const auto* const bart = std::get_if<BartConfig>(&folder.config)) {
      request.prompt = {bart->decoder_start_token_id};
      request.encoder_tokens = *std::move(tokens);
    } else {
      request.prompt = *std::move(tokens);
    }
    if (options.stop == StopChoice::kAtEndOfText) {
      request.stop_tokens = folder.eos_token_ids();
    }
    if (!options.stops.empty()) {
      request.new_stop_matcher = [tokenizer = &*folder.tokenizer, stops = options.stops] {
        return std::make_unique<StopText>(*tokenizer, stops);
      };
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::StatusOr<std::vector<int32_t>> PredictedTokens(const Prompt& predicted,
                                                     const ModelFolder& folder) {
  absl::StatusOr<TokenList> tokens = TokensOf(predicted, folder, {.adds_template = false});
  if (tokens.ok()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat("predicted ", tokens.status().message()));
}

namespace {

// What does not depend on the requests, but for `num_rows` sequences at a time.
EngineOptions SharedOptions(const DecodeOptions& options, int num_rows, int64_t max_seq_len) {
  const RunnerChoice& choice = options.runner;
  const int max_num_tokens = choice.max_num_tokens.value_or(kMaxTokens);
  const int prefill_chunk = static_cast<int>(
      std::min<int64_t>(options.prefill_chunk.value_or(max_num_tokens), max_seq_len));
  EngineOptions engine;
  engine.prefill_chunk = prefill_chunk;
  engine.runner.max_num_seqs = num_rows;
  const int num_drafts = options.draft.has_value() ? options.draft->num_tokens : 0;
  engine.runner.max_num_tokens =
      std::max({num_rows * (1 + num_drafts), prefill_chunk, max_num_tokens});
  engine.runner.speculation.max_drafts = num_drafts;
  if (num_drafts > 0) {
    engine.runner.speculation.proposer = options.draft->model.has_value()
                                             ? SpeculationOptions::Proposer::kModel
                                             : SpeculationOptions::Proposer::kNgram;
    engine.runner.speculation.acceptance = options.draft->acceptance;
    engine.runner.speculation.tree = options.draft->tree;
    if (!options.draft->tree.empty()) engine.runner.speculation.shape = DraftShape::kTree;
  }
  engine.runner.max_seq_len = static_cast<int>(max_seq_len);
  engine.runner.block_size = options.block_size;
  engine.runner.divides_context = options.divides_context;
  engine.runner.context_ranks = options.context_ranks.value_or(0);
  engine.runner.num_blocks = options.num_blocks;
  if (options.graphs == GraphChoice::kOff) engine.runner.graphs = GraphSetOptions::Mode::kOff;
  engine.runner.kv_dtype = choice.kv_dtype;
  engine.runner.kv_memory_bytes = choice.kv_memory_bytes;
  engine.runner.kv_order = choice.kv_order;
  engine.runner.kv_form = choice.kv_form;
  if (choice.kv_scales == KvScaleChoice::kPerHead) {
    engine.runner.kv_scale_shape = KvScaleShape::kPerHead;
  }
  if (choice.calibrates_kv) engine.runner.kv_calibration = KvCalibration::kFirstStep;
  engine.runner.graph_memory_budget_bytes = choice.graph_memory_bytes;
  engine.runner.num_swap_blocks = choice.num_swap_blocks;
  for (const int size : choice.graph_sizes) {
    if (size <= num_rows) engine.runner.graph_sizes.push_back(size);
  }
  if (choice.mixed_graphs.has_value()) {
    engine.runner.mixed_graphs = *choice.mixed_graphs ? MixedGraphs::kOn : MixedGraphs::kOff;
  }
  if (choice.cascade.has_value()) {
    engine.runner.cascade = *choice.cascade ? CascadeMode::kAuto : CascadeMode::kOff;
  }
  engine.runner.max_steps_in_flight = choice.steps_in_flight;
  if (choice.is_batch_invariant) engine.runner.batch_invariance = BatchInvariance::kOn;
  engine.runner.attention_in_graphs = choice.attention_in_graphs;
  if (choice.checks_replays) engine.runner.replay_check = ReplayCheck::kEveryReplay;
  engine.runner.linear_choices_file = choice.linear_choices_file;
  if (!choice.reuses_prefixes) engine.prefix_reuse = PrefixReuse::kOff;
  return engine;
}

}  // namespace

EngineOptions EngineOptionsFor(const DecodeOptions& options, absl::Span<const Request> requests,
                               int max_position) {
  const int num_rows = static_cast<int>(std::min<size_t>(requests.size(), kMaxDecodeRows));
  const int64_t max_seq_len = std::min<int64_t>(LongestSequence(requests), max_position);
  EngineOptions engine = SharedOptions(options, num_rows, max_seq_len);
  const int64_t longest_input = LongestEncoderInput(requests);
  if (longest_input > 0) {
    engine.runner.max_encoder_tokens =
        static_cast<int>(std::min<int64_t>(longest_input, max_position));
  }
  if (options.dump_logits.has_value()) engine.runner.step_logits = StepLogits::kOfEvery;
  engine.runner.logits.penalties = HasPenalties(ToLogitsRequest(requests.front()).params);
  engine.runner.logits.max_log_probs = options.num_log_probs;
  if (options.perplexity.has_value()) {
    // One window at a time: its chunks fill the steps.
    engine.runner.max_num_seqs = 1;
    engine.runner.logits.max_log_probs = 0;
    engine.runner.max_earlier_logits = std::max(engine.prefill_chunk - 1, 0);
  }
  return engine;
}

EngineOptions ServingEngineOptions(const DecodeOptions& options, int max_position) {
  const int64_t max_seq_len = std::min(options.max_seq_len.value_or(kServingTokens), max_position);
  EngineOptions engine =
      SharedOptions(options, options.max_num_seqs.value_or(kServingRows), max_seq_len);
  engine.max_waiting = options.max_waiting;
  engine.runner.logits.penalties = true;
  engine.runner.logits.max_log_probs = kMaxTopLogProbs;
  return engine;
}

}  // namespace reprise
