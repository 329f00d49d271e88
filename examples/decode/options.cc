#include "examples/decode/options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "examples/decode/engine_flags.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/utf8.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/speculation/draft_levels.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {
namespace {

absl::Status AtLeast(const char* flag, int64_t least, int64_t value) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected at least ", least, ", got ", value));
}

absl::StatusOr<SamplingOptions> SamplingOf(const DecodeArguments& arguments) {
  // Beyond this a float32 logit divided by it is noise; infinity and NaN are not temperatures.
  constexpr double kMaxTemperature = 1e6;
  if (!(arguments.temperature >= 0 && arguments.temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(absl::StrCat("--temperature: expected a number in [0, ",
                                                   kMaxTemperature, "], got ",
                                                   arguments.temperature));
  }
  // The smallest double above 0 is 0 as a float32.
  if (!(static_cast<float>(arguments.top_p) > 0 && arguments.top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top_p: expected a number in (0, 1], got ", arguments.top_p));
  }
  if (!(arguments.min_p >= 0 && arguments.min_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_p: expected a number in [0, 1], got ", arguments.min_p));
  }
  REPRISE_RETURN_IF_ERROR(AtLeast("top_k", 0, arguments.top_k));
  // As float32 it must not be 0 or infinity.
  static constexpr double kMaxPenalty = 1e6;
  if (!(arguments.repetition_penalty >= 1 / kMaxPenalty &&
        arguments.repetition_penalty <= kMaxPenalty)) {
    return absl::InvalidArgumentError(absl::StrCat("--repetition_penalty: expected a number in [",
                                                   1 / kMaxPenalty, ", ", kMaxPenalty, "], got ",
                                                   arguments.repetition_penalty));
  }
  const auto check_penalty = [](const char* flag, double penalty) -> absl::Status {
    if (std::abs(penalty) <= kMaxPenalty) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": expected a number in [",
                                                   -kMaxPenalty, ", ", kMaxPenalty, "], got ",
                                                   penalty));
  };
  REPRISE_RETURN_IF_ERROR(check_penalty("presence_penalty", arguments.presence_penalty));
  REPRISE_RETURN_IF_ERROR(check_penalty("frequency_penalty", arguments.frequency_penalty));
  return SamplingOptions{.temperature = static_cast<float>(arguments.temperature),
                         .top_k = arguments.top_k,
                         .top_p = static_cast<float>(arguments.top_p),
                         .min_p = static_cast<float>(arguments.min_p),
                         .seed = arguments.seed,
                         .repetition_penalty = static_cast<float>(arguments.repetition_penalty),
                         .presence_penalty = static_cast<float>(arguments.presence_penalty),
                         .frequency_penalty = static_cast<float>(arguments.frequency_penalty)};
}

// Flags that ask for a part of the output which others leave out.
absl::Status CheckOutput(const DecodeArguments& arguments) {
  if (arguments.log_probs < -1 || arguments.log_probs > kMaxTopLogProbs) {
    return absl::InvalidArgumentError(absl::StrCat("--log_probs: expected -1 to ", kMaxTopLogProbs,
                                                   ", got ", arguments.log_probs));
  }
  if (arguments.command == DecodeCommand::kRun && arguments.log_probs >= 0 && !arguments.json) {
    return absl::InvalidArgumentError("--log_probs are part of the output of --json: give both");
  }
  if (!arguments.perplexity.has_value()) return absl::OkStatus();
  for (const auto& [flag, is_given] :
       {std::pair("dump_logits", arguments.dump_logits.has_value()),
        std::pair("log_probs", arguments.log_probs >= 0),
        std::pair("add_special_tokens", !arguments.add_special_tokens),
        std::pair("stop", !arguments.stops.empty()),
        std::pair("stop_tokens", arguments.stop_tokens.has_value()),
        std::pair("include_stop", arguments.include_stop)}) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is of texts that are generated: --perplexity generates none"));
  }
  return absl::OkStatus();
}

// The tree of "3,2x4".
absl::StatusOr<std::vector<int>> TreeOf(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  std::vector<int> widths;
  int depth = 0;
  bool is_read = parts.size() == 2 && absl::SimpleAtoi(parts[1], &depth);
  for (const std::string& width : std::vector<std::string>(absl::StrSplit(parts[0], ','))) {
    is_read &= absl::SimpleAtoi(width, &widths.emplace_back());
  }
  if (!is_read) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tree: expected WIDTHSxDEPTH, such as 3,2x4, got ", text));
  }
  absl::StatusOr<std::vector<int>> tree = TreeOfWidths(widths, depth);
  if (tree.ok()) return tree;
  return absl::InvalidArgumentError(absl::StrCat("--tree: ", tree.status().message()));
}

// Sets the runner's options, but for a draft model.
absl::StatusOr<std::optional<DraftChoice>> DraftOf(const DecodeArguments& arguments,
                                                   SpeculationOptions& speculation) {
  if (!arguments.draft.has_value()) {
    for (const auto& [flag, is_given] :
         {std::pair("num_draft_tokens", arguments.num_draft_tokens.has_value()),
          std::pair("tree", arguments.tree.has_value()),
          std::pair("acceptance", arguments.acceptance.has_value()),
          std::pair("compare_plain", arguments.compare_plain)}) {
      if (!is_given) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", flag, " is of --draft: give both"));
    }
    return std::nullopt;
  }
  for (const auto& [flag, is_given] :
       {std::pair("perplexity", arguments.perplexity.has_value()),
        std::pair("dump_logits", arguments.dump_logits.has_value())}) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--draft is of texts that are generated without their logits: expected no --", flag));
  }
  DraftChoice draft;
  const int num_tokens = arguments.num_draft_tokens.value_or(4);
  if (num_tokens < 1 || num_tokens > kMaxDrafts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_draft_tokens: expected 1 to ", kMaxDrafts, ", got ", num_tokens));
  }
  speculation.max_drafts = num_tokens;
  if (arguments.draft == kNgramDrafts) {
    speculation.proposer = NgramProposer{};
  } else {
    draft.model = arguments.draft;
  }
  if (arguments.tree.has_value()) {
    if (!draft.model.has_value()) {
      return absl::InvalidArgumentError(
          "--tree is of a draft model: expected --draft FOLDER, got --draft ngram, which proposes "
          "chains");
    }
    if (arguments.num_draft_tokens.has_value()) {
      return absl::InvalidArgumentError("--tree and --num_draft_tokens exclude each other");
    }
    REPRISE_ASSIGN_OR_RETURN(speculation.tree, TreeOf(*arguments.tree));
    speculation.shape = DraftShape::kTree;
    speculation.max_drafts = static_cast<int>(speculation.tree.size());
  }
  const std::string acceptance = arguments.acceptance.value_or("same_text");
  if (acceptance != "same_text" && acceptance != "rejection") {
    return absl::InvalidArgumentError(
        absl::StrCat("--acceptance: expected same_text or rejection, got ", acceptance));
  }
  if (acceptance == "rejection") {
    if (!speculation.tree.empty()) {
      return absl::InvalidArgumentError("--acceptance rejection is of chains: expected no --tree");
    }
    speculation.acceptance = DraftAcceptance::kRejection;
  }
  draft.compares_plain = arguments.compare_plain;
  return draft;
}

absl::StatusOr<BenchChoice> BenchOf(const DecodeArguments& arguments) {
  BenchChoice bench;
  REPRISE_ASSIGN_OR_RETURN(bench.batches, CountsOf("batches", arguments.batches, 1 << 12));
  REPRISE_ASSIGN_OR_RETURN(bench.contexts, CountsOf("contexts", arguments.contexts, 1 << 20));
  REPRISE_RETURN_IF_ERROR(AtLeast("num_tokens", 1, arguments.num_tokens));
  bench.num_tokens = arguments.num_tokens;
  return bench;
}

absl::StatusOr<std::vector<Prompt>> PromptsOf(const DecodeArguments& arguments) {
  std::vector<std::string> sources;
  if (!arguments.texts.empty()) sources.push_back("--prompt");
  if (arguments.prompt_tokens.has_value()) sources.push_back("--prompt_tokens");
  if (arguments.batch.has_value()) sources.push_back("--batch");
  if (arguments.perplexity.has_value()) sources.push_back("--perplexity");
  if (sources.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "only one of --prompt, --prompt_tokens, --batch and --perplexity may be given, "
        "got ",
        absl::StrJoin(sources, " and ")));
  }
  if (arguments.batch.has_value()) {
    absl::StatusOr<std::vector<Prompt>> prompts = ReadPromptFile(*arguments.batch);
    if (prompts.ok()) return prompts;
    return absl::Status(prompts.status().code(),
                        absl::StrCat("--batch: ", prompts.status().message()));
  }
  std::vector<Prompt> prompts;
  if (arguments.prompt_tokens.has_value()) {
    absl::StatusOr<TokenList> tokens = ParseTokenList(*arguments.prompt_tokens);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt_tokens: ", tokens.status().message()));
    }
    prompts.push_back({.content = *std::move(tokens)});
  }
  for (const std::string& text : arguments.texts) {
    prompts.push_back({.content = text});
    if (const absl::Status status = CheckPrompt(prompts.back()); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt: prompt ", prompts.size(), " ", status.message()));
    }
  }
  return prompts;
}

}  // namespace

absl::StatusOr<DecodeOptions> MakeDecodeOptions(const DecodeArguments& arguments) {
  DecodeOptions options;
  options.command = arguments.command;
  options.model = arguments.model;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_new_tokens", 1, arguments.max_new_tokens));
  options.max_new_tokens = arguments.max_new_tokens;
  options.stop = arguments.ignore_eos ? StopChoice::kAtLengthOnly : StopChoice::kAtEndOfText;
  REPRISE_ASSIGN_OR_RETURN(options.sampling, SamplingOf(arguments));
  options.dtype = arguments.dtype;
  options.device = arguments.device;
  options.num_ranks = arguments.ranks;
  options.rank_timeout = absl::Seconds(arguments.rank_timeout);
  options.engine = arguments.engine;
  REPRISE_ASSIGN_OR_RETURN(options.bench, BenchOf(arguments));
  options.chat_template = arguments.chat_template;
  options.system = arguments.system.value_or("");
  if (FindInvalidUtf8(options.system).has_value()) {
    return absl::InvalidArgumentError("--system is not UTF-8");
  }
  options.adds_special_tokens = arguments.add_special_tokens;
  options.shows_stats = arguments.stats;
  options.watches = arguments.watch;
  options.socket = arguments.socket;
  for (const std::string& stop : arguments.stops) {
    if (stop.empty()) return absl::InvalidArgumentError("--stop: expected a text, got none");
    // Generated text is UTF-8: the stop would never be found.
    if (FindInvalidUtf8(stop)) return absl::InvalidArgumentError("--stop is not UTF-8");
  }
  options.stops = {.texts = arguments.stops, .is_included = arguments.include_stop};
  if (arguments.stop_tokens.has_value()) {
    absl::StatusOr<TokenList> tokens = ParseTokenList(*arguments.stop_tokens);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--stop_tokens: ", tokens.status().message()));
    }
    options.stop_tokens = *std::move(tokens);
  }
  REPRISE_RETURN_IF_ERROR(CheckOutput(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.draft, DraftOf(arguments, options.engine.runner.speculation));
  options.num_log_probs = arguments.log_probs;
  options.perplexity = arguments.perplexity;
  options.dump_logits = arguments.dump_logits;
  options.trace = arguments.trace;
  options.output = arguments.json ? OutputChoice::kJson : OutputChoice::kText;
  REPRISE_ASSIGN_OR_RETURN(options.prompts, PromptsOf(arguments));
  return options;
}

absl::Duration IdleInterval(const DecodeOptions& options) {
  return std::min(absl::Seconds(5), options.rank_timeout / 3);
}

}  // namespace reprise
