#include "examples/decode/requests.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/text/answer_text.h"
#include "examples/decode/text/stop_text.h"
#include "reprise/base/status_macros.h"
#include "reprise/graphs/graph_set_options.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

absl::StatusOr<TokenList> TokensOf(const Prompt& prompt, const ModelFolder& folder,
                                   const EncodeOptions& options) {
  if (!prompt.is_text()) return std::get<TokenList>(prompt.content);
  if (!folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a text, but ", folder.WhyNoTokenizer(), ": give token ids"));
  }
  return folder.tokenizer->Encode(std::get<std::string>(prompt.content), options);
}

// A token that the model cannot generate would end nothing.
absl::Status CheckStopTokens(absl::Span<const int32_t> tokens, const ModelFolder& folder) {
  const int vocab_size = std::visit([](const auto& c) { return c.vocab_size; }, folder.config);
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("stop_tokens must be in the vocabulary: expected ids in [0, ", vocab_size,
                     "), got ", token));
  }
  return absl::OkStatus();
}

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
                                                  const ModelFolder& folder,
                                                  const char* stop_name) {
  if (!options.stops.texts.empty() && !folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(stop_name, " is a text, but ", folder.WhyNoTokenizer()));
  }
  REPRISE_RETURN_IF_ERROR(CheckStopTokens(options.stop_tokens, folder));
  std::vector<Request> requests;
  requests.reserve(prompts.size());
  for (const Prompt& prompt : prompts) {
    absl::StatusOr<TokenList> tokens =
        TokensOf(prompt, folder, {.adds_template = options.adds_special_tokens});
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
    request.stop_tokens.insert(request.stop_tokens.end(), options.stop_tokens.begin(),
                               options.stop_tokens.end());
    if (!options.stops.texts.empty()) {
      request.new_stop_matcher = [text = AnswerText(*folder.tokenizer, request, options.stops)] {
        return std::make_unique<StopText>(text);
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

// The options of the flags, for `num_rows` sequences of `max_seq_len` tokens at a time.
ModelEngineOptions SizedOptions(const DecodeOptions& options, int num_rows, int64_t max_seq_len) {
  ModelEngineOptions engine = options.engine;
  ModelRunnerOptions& runner = engine.runner;
  int& prefill_chunk = engine.scheduler.prefill_chunk;
  if (prefill_chunk == 0) prefill_chunk = runner.max_num_tokens;
  prefill_chunk = static_cast<int>(std::min<int64_t>(prefill_chunk, max_seq_len));
  runner.max_num_seqs = num_rows;
  runner.max_num_tokens = std::max(
      {num_rows * (1 + runner.speculation.max_drafts), prefill_chunk, runner.max_num_tokens});
  runner.max_seq_len = static_cast<int>(max_seq_len);
  std::erase_if(runner.graphs.sizes, [&](int size) { return size > num_rows; });
  return engine;
}

}  // namespace

ModelEngineOptions EngineOptionsFor(const DecodeOptions& options,
                                    absl::Span<const Request> requests, int max_position) {
  const int num_rows = static_cast<int>(std::min<size_t>(requests.size(), kMaxDecodeRows));
  const int64_t max_seq_len = std::min<int64_t>(LongestSequence(requests), max_position);
  ModelEngineOptions engine = SizedOptions(options, num_rows, max_seq_len);
  const int64_t longest_input = LongestEncoderInput(requests);
  if (longest_input > 0) {
    engine.runner.max_encoder_tokens =
        static_cast<int>(std::min<int64_t>(longest_input, max_position));
  }
  if (options.dump_logits.has_value()) engine.runner.logits.step_logits = StepLogits::kOfEvery;
  engine.runner.logits.penalties = HasPenalties(ToLogitsRequest(requests.front()).params);
  engine.runner.logits.max_log_probs = options.num_log_probs;
  if (options.perplexity.has_value()) {
    // One window at a time: its chunks fill the steps.
    engine.runner.max_num_seqs = 1;
    engine.runner.logits.max_log_probs = 0;
    engine.runner.logits.max_earlier_logits = std::max(engine.scheduler.prefill_chunk - 1, 0);
  }
  return engine;
}

ModelEngineOptions ServingEngineOptions(const DecodeOptions& options, int max_position) {
  const ModelRunnerOptions& runner = options.engine.runner;
  const int64_t max_seq_len = std::min(runner.max_seq_len.value_or(kServingTokens), max_position);
  ModelEngineOptions engine = SizedOptions(options, runner.max_num_seqs, max_seq_len);
  engine.runner.logits.penalties = true;
  engine.runner.logits.max_log_probs = kMaxTopLogProbs;
  return engine;
}

}  // namespace reprise
