#include "examples/decode/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "examples/hf/strict_json.h"
#include "examples/hf/utf8.h"
#include "runner/sampling/logits_params.h"
#include "runner/speculation/draft_levels.h"
#include "runner/speculation/speculation_options.h"

namespace reprise {
namespace {

absl::Status AtLeast(const char* flag, int64_t least, int64_t value) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected at least ", least, ", got ", value));
}

template <typename T>
struct Choice {
  const char* name;
  T value;
};

template <typename T, size_t kCount>
absl::StatusOr<T> Choose(const char* flag, const std::string& name,
                         const std::array<Choice<T>, kCount>& choices) {
  std::vector<std::string> names;
  for (const Choice<T>& choice : choices) {
    if (name == choice.name) return choice.value;
    names.push_back(choice.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, ": expected ", absl::StrJoin(names, ", "), ", got ", DescribeJson(name)));
}

absl::StatusOr<SamplingOptions> SamplingOf(const DecodeArguments& arguments) {
  // Beyond this a float32 logit divided by it is noise; infinity and NaN are not temperatures.
  constexpr double kMaxTemperature = 1e6;
  if (!(arguments.temperature >= 0 && arguments.temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(absl::StrCat("--temperature: expected a number in [0, ",
                                                   kMaxTemperature, "], got ",
                                                   arguments.temperature));
  }
  if (!(arguments.top_p > 0 && arguments.top_p <= 1)) {
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
  for (const auto& [flag, is_given] : {std::pair("dump_logits", arguments.dump_logits.has_value()),
                                       std::pair("log_probs", arguments.log_probs >= 0),
                                       std::pair("stop", !arguments.stops.empty())}) {
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

absl::StatusOr<std::optional<DraftChoice>> DraftOf(const DecodeArguments& arguments) {
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
  draft.num_tokens = arguments.num_draft_tokens.value_or(draft.num_tokens);
  if (draft.num_tokens < 1 || draft.num_tokens > kMaxDrafts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--num_draft_tokens: expected 1 to ", kMaxDrafts, ", got ", draft.num_tokens));
  }
  if (arguments.draft != kNgramDrafts) draft.model = arguments.draft;
  if (arguments.tree.has_value()) {
    if (!draft.model.has_value()) {
      return absl::InvalidArgumentError(
          "--tree is of a draft model: expected --draft FOLDER, got --draft ngram, which proposes "
          "chains");
    }
    if (arguments.num_draft_tokens.has_value()) {
      return absl::InvalidArgumentError("--tree and --num_draft_tokens exclude each other");
    }
    REPRISE_ASSIGN_OR_RETURN(draft.tree, TreeOf(*arguments.tree));
    draft.num_tokens = static_cast<int>(draft.tree.size());
  }
  const std::string acceptance = arguments.acceptance.value_or("same_text");
  if (acceptance != "same_text" && acceptance != "rejection") {
    return absl::InvalidArgumentError(
        absl::StrCat("--acceptance: expected same_text or rejection, got ", acceptance));
  }
  if (acceptance == "rejection") {
    if (!draft.tree.empty()) {
      return absl::InvalidArgumentError("--acceptance rejection is of chains: expected no --tree");
    }
    draft.acceptance = DraftAcceptance::kRejection;
  }
  draft.compares_plain = arguments.compare_plain;
  return draft;
}

// "1,8,32", ascending or not, each in [1, most].
absl::StatusOr<std::vector<int>> CountsOf(const char* flag, const std::string& text, int most) {
  std::vector<int> counts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    int count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1 || count > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": expected a list of numbers in [1, ", most,
                       "], such as 1,8,32, got ", DescribeJson(text)));
    }
    counts.push_back(count);
  }
  return counts;
}

absl::StatusOr<std::optional<bool>> SwitchOf(const char* flag, const std::string& name) {
  constexpr std::array<Choice<std::optional<bool>>, 3> kSwitches = {
      {{"auto", std::nullopt}, {"on", true}, {"off", false}}};
  return Choose(flag, name, kSwitches);
}

absl::StatusOr<std::optional<int64_t>> BytesOf(const char* flag, std::optional<double> gb) {
  constexpr double kMostGb = 1e6;
  if (!gb.has_value()) return std::nullopt;
  if (*gb > 0 && *gb <= kMostGb) return static_cast<int64_t>(*gb * 1e9);
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected a number in (0, ", kMostGb, "], got ", *gb));
}

// How the KV cache is stored.
absl::Status ReadKvLayout(const DecodeArguments& arguments, RunnerChoice& runner) {
  constexpr std::array<Choice<KvOrder>, 2> kOrders = {
      {{"nhd", KvOrder::kNHD}, {"hnd", KvOrder::kHND}}};
  constexpr std::array<Choice<KvForm>, 4> kForms = {{{"pair", KvForm::kPair},
                                                     {"packed", KvForm::kPacked},
                                                     {"diff_kv", KvForm::kDiffKv},
                                                     {"k_packed", KvForm::kKPacked}}};
  constexpr std::array<Choice<KvScaleChoice>, 2> kScales = {
      {{"per_layer", KvScaleChoice::kPerLayer}, {"per_head", KvScaleChoice::kPerHead}}};
  REPRISE_ASSIGN_OR_RETURN(runner.kv_order, Choose("kv_order", arguments.kv_order, kOrders));
  REPRISE_ASSIGN_OR_RETURN(runner.kv_form, Choose("kv_form", arguments.kv_form, kForms));
  REPRISE_ASSIGN_OR_RETURN(runner.kv_scales, Choose("kv_scales", arguments.kv_scales, kScales));
  runner.calibrates_kv = arguments.kv_calibration;
  return absl::OkStatus();
}

absl::StatusOr<RunnerChoice> RunnerOf(const DecodeArguments& arguments) {
  RunnerChoice runner;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_num_tokens", 1, arguments.max_num_tokens.value_or(1)));
  runner.max_num_tokens = arguments.max_num_tokens;
  if (arguments.kv_dtype.has_value()) {
    runner.kv_dtype = ParseDType(*arguments.kv_dtype);
    if (!runner.kv_dtype.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv_dtype: expected float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, got ",
                       DescribeJson(*arguments.kv_dtype)));
    }
  }
  REPRISE_ASSIGN_OR_RETURN(runner.kv_memory_bytes, BytesOf("kv_memory_gb", arguments.kv_memory_gb));
  if (runner.kv_memory_bytes.has_value() && arguments.num_blocks.has_value()) {
    return absl::InvalidArgumentError("--kv_memory_gb and --num_blocks exclude each other");
  }
  REPRISE_RETURN_IF_ERROR(ReadKvLayout(arguments, runner));
  REPRISE_ASSIGN_OR_RETURN(runner.graph_memory_bytes,
                           BytesOf("graph_memory_gb", arguments.graph_memory_gb));
  REPRISE_RETURN_IF_ERROR(AtLeast("num_swap_blocks", 0, arguments.num_swap_blocks));
  runner.num_swap_blocks = arguments.num_swap_blocks;
  if (arguments.graph_sizes.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(runner.graph_sizes,
                             CountsOf("graph_sizes", *arguments.graph_sizes, 1 << 16));
  }
  REPRISE_ASSIGN_OR_RETURN(runner.mixed_graphs, SwitchOf("mixed_graphs", arguments.mixed_graphs));
  REPRISE_ASSIGN_OR_RETURN(runner.cascade, SwitchOf("cascade", arguments.cascade));
  REPRISE_RETURN_IF_ERROR(AtLeast("steps_in_flight", 1, arguments.steps_in_flight.value_or(1)));
  runner.steps_in_flight = arguments.steps_in_flight;
  constexpr std::array<Choice<bool>, 2> kReuse = {{{"on", true}, {"off", false}}};
  REPRISE_ASSIGN_OR_RETURN(runner.reuses_prefixes,
                           Choose("prefix_reuse", arguments.prefix_reuse, kReuse));
  runner.is_batch_invariant = arguments.batch_invariant;
  runner.attention_in_graphs = !arguments.attention_outside_graphs;
  runner.checks_replays = arguments.check_replays;
  if (arguments.linear_choices.has_value()) {
    if (arguments.linear_choices->empty()) {
      return absl::InvalidArgumentError("--linear_choices: expected a file, got an empty name");
    }
    runner.linear_choices_file = *arguments.linear_choices;
  }
  return runner;
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
  constexpr std::array<Choice<std::optional<DType>>, 4> kDTypes = {{{"auto", std::nullopt},
                                                                    {"float32", DType::kFloat32},
                                                                    {"bfloat16", DType::kBFloat16},
                                                                    {"float16", DType::kFloat16}}};
  constexpr std::array<Choice<DeviceChoice>, 3> kDevices = {
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}}};
  constexpr std::array<Choice<GraphChoice>, 2> kGraphs = {
      {{"on", GraphChoice::kOn}, {"off", GraphChoice::kOff}}};

  DecodeOptions options;
  options.command = arguments.command;
  options.model = arguments.model;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_new_tokens", 1, arguments.max_new_tokens));
  options.max_new_tokens = arguments.max_new_tokens;
  options.stop = arguments.ignore_eos ? StopChoice::kAtLengthOnly : StopChoice::kAtEndOfText;
  REPRISE_ASSIGN_OR_RETURN(options.sampling, SamplingOf(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.dtype, Choose("dtype", arguments.dtype, kDTypes));
  REPRISE_ASSIGN_OR_RETURN(options.device, Choose("device", arguments.device, kDevices));
  REPRISE_RETURN_IF_ERROR(AtLeast("ranks", 1, arguments.ranks.value_or(1)));
  options.num_ranks = arguments.ranks;
  constexpr std::array<Choice<bool>, 2> kParallel = {{{"tensor", false}, {"context", true}}};
  REPRISE_ASSIGN_OR_RETURN(options.divides_context,
                           Choose("parallel", arguments.parallel, kParallel));
  REPRISE_RETURN_IF_ERROR(AtLeast("context_ranks", 1, arguments.context_ranks.value_or(1)));
  if (arguments.context_ranks.has_value() && !options.divides_context) {
    return absl::InvalidArgumentError("--context_ranks: expected --parallel=context with it");
  }
  options.context_ranks = arguments.context_ranks;
  REPRISE_RETURN_IF_ERROR(AtLeast("rank_timeout", 1, arguments.rank_timeout));
  options.rank_timeout = absl::Seconds(arguments.rank_timeout);
  REPRISE_ASSIGN_OR_RETURN(options.graphs, Choose("graphs", arguments.graphs, kGraphs));
  REPRISE_RETURN_IF_ERROR(AtLeast("block_size", 1, arguments.block_size));
  options.block_size = arguments.block_size;
  // The null block, and one to use.
  REPRISE_RETURN_IF_ERROR(AtLeast("num_blocks", 2, arguments.num_blocks.value_or(2)));
  options.num_blocks = arguments.num_blocks;
  REPRISE_RETURN_IF_ERROR(AtLeast("prefill_chunk", 0, arguments.prefill_chunk.value_or(0)));
  if (arguments.prefill_chunk != 0) options.prefill_chunk = arguments.prefill_chunk;
  constexpr int kMostSequences = 1 << 16;
  if (const int rows = arguments.max_num_seqs.value_or(1); rows < 1 || rows > kMostSequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max_num_seqs: expected 1 to ", kMostSequences, ", got ", rows));
  }
  options.max_num_seqs = arguments.max_num_seqs;
  REPRISE_ASSIGN_OR_RETURN(options.runner, RunnerOf(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.bench, BenchOf(arguments));
  options.chat_template = arguments.chat_template;
  options.system = arguments.system.value_or("");
  if (FindInvalidUtf8(options.system).has_value()) {
    return absl::InvalidArgumentError("--system is not UTF-8");
  }
  options.shows_stats = arguments.stats;
  options.watches = arguments.watch;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_seq_len", 2, arguments.max_seq_len.value_or(2)));
  options.max_seq_len = arguments.max_seq_len;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_waiting", 0, arguments.max_waiting));
  options.max_waiting = arguments.max_waiting;
  options.socket = arguments.socket;
  for (const std::string& stop : arguments.stops) {
    if (stop.empty()) return absl::InvalidArgumentError("--stop: expected a text, got none");
  }
  options.stops = arguments.stops;
  REPRISE_RETURN_IF_ERROR(CheckOutput(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.draft, DraftOf(arguments));
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
