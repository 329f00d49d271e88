#include "examples/decode/options.h"

#include <CLI/CLI.hpp>
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
#include "examples/hf/paths.h"
#include "examples/hf/strict_json.h"
#include "runner/sampling/logits_params.h"
#include "runner/speculation/draft_levels.h"
#include "runner/speculation/speculation_options.h"

namespace reprise {
namespace {

constexpr char kNgram[] = "ngram";  // of --draft

bool ParseNumber(const std::string& text, int* value) { return absl::SimpleAtoi(text, value); }
bool ParseNumber(const std::string& text, uint64_t* value) { return absl::SimpleAtoi(text, value); }
bool ParseNumber(const std::string& text, double* value) { return absl::SimpleAtod(text, value); }

// The flags of decode. CLI11 parses their values as texts only: its own conversion reads "010" as
// 8, and accepts an empty text as no value.
class DecodeFlags {
 public:
  explicit DecodeFlags(DecodeArguments& arguments) : arguments_(arguments) {
    app_.option_defaults()->take_last();
    app_.set_help_flag("--help", "this text");
    AddPath("model", arguments.model,
            "Hugging Face folder of a model (docs/models.md): config.json, *.safetensors and, for "
            "texts, tokenizer.json. Without it, the small model that comes with the project.");
    Add("prompt", "TEXT",
        "text to continue; may be repeated, and followed by more texts. All run as one batch.",
        [](const std::string&) { return true; });  // Parse() keeps them
    AddText("prompt_tokens", arguments.prompt_tokens, "token ids to continue: 1,2,3");
    AddPath("batch", arguments.batch,
            "file with a prompt a line: a JSON string, a list of token ids, or an object with "
            "\"prompt\" or \"prompt_tokens\" and, if wanted, \"forced_tokens\", which are fed in "
            "place of sampled ones");
    AddNumber("max_new_tokens", arguments.max_new_tokens, "tokens to generate at most, a prompt");
    AddSwitch("ignore_eos", arguments.ignore_eos, "go on behind an end-of-text token");
    AddNumber("temperature", arguments.temperature, "0: always the likeliest token");
    AddNumber("top_k", arguments.top_k, "sample among so many likeliest tokens; 0: all");
    AddNumber("top_p", arguments.top_p,
              "sample among the likeliest tokens of this total probability");
    AddNumber("min_p", arguments.min_p,
              "sample among the tokens at least so probable as this part of the likeliest one");
    AddNumber(
        "seed", arguments.seed,
        "of sampling: a prompt gives the same text again, alone and among others. Without it, "
        "another one each time");
    AddNumber("repetition_penalty", arguments.repetition_penalty,
              "above 1: tokens of the prompt and of the text so far become less likely");
    AddNumber("presence_penalty", arguments.presence_penalty,
              "subtracted from the logits of tokens of the text so far");
    AddNumber("frequency_penalty", arguments.frequency_penalty,
              "the same, for each time that they have occurred");
    Add("stop", "TEXT", "a text that ends with this has ended; may be repeated",
        [](const std::string&) { return true; });  // Parse() keeps them
    AddNumber(
        "log_probs", arguments.log_probs,
        "with --json: the log-probability of each token, and of so many likeliest tokens; -1: "
        "none");
    AddChoice("dtype", arguments.dtype,
              "of weights, activations and cache: auto (the checkpoint's), float32, bfloat16, "
              "float16");
    AddChoice("device", arguments.device, "auto (a GPU if there is one), cpu, cuda");
    AddNumber("ranks", arguments.ranks,
              "divide the model over so many processes, with a GPU each or all on the CPU; without "
              "it, over those that torchrun, Slurm or MPI has started (docs/distributed.md)");
    AddChoice("graphs", arguments.graphs, "on: decode steps are captured once and replayed; off");
    AddNumber("block_size", arguments.block_size, "tokens a block of the KV cache");
    AddNumber("num_blocks", arguments.num_blocks,
              "blocks of the KV cache, the null block included; without it, as many as the prompts "
              "can use");
    AddNumber("prefill_chunk", arguments.prefill_chunk,
              "prompt tokens computed in a step at most, a sequence; without it or 0, up to 512");
    Add("draft", "PATH",
        "folder of a small model with the same vocabulary, whose drafts the model verifies; or "
        "ngram: drafts from the text so far. The text stays the same",
        [&arguments](const std::string& value) {
          arguments.draft = value == kNgram ? value : ResolveUserPath(value);
          return true;
        });
    AddNumber("num_draft_tokens", arguments.num_draft_tokens,
              "with --draft: drafts of a sequence in a step at most; without it 4");
    Add("tree", "WIDTHSxDEPTH",
        "with --draft FOLDER, in place of --num_draft_tokens: drafts form trees of DEPTH levels; "
        "WIDTHS "
        "says, level by level, how many follow each draft of the level before, then 1: 3,2x4 has 3 "
        "+ "
        "6 + 6 + 6 drafts",
        [&arguments](const std::string& value) {
          arguments.tree = value;
          return true;
        });
    Add("acceptance", "TEXT",
        "with --draft: same_text (default), the text of plain decoding; or rejection: rejection "
        "sampling, another text of the same distribution",
        [&arguments](const std::string& value) {
          arguments.acceptance = value;
          return true;
        });
    AddSwitch("compare_plain", arguments.compare_plain,
              "with --draft: run again without drafts, and print the speed of both");
    AddPath("dump_logits", arguments.dump_logits,
            "safetensors file to write: logits_<i> float32 [n, vocab], from which the n tokens of "
            "prompt i were, or in place of forced ones would have been, chosen");
    AddPath("trace", arguments.trace,
            "file to write: JSON for chrome://tracing and Perfetto, where the host's time of each "
            "step goes");
    AddPath("perplexity", arguments.perplexity,
            "text file to score: prints how well the model predicts it, and generates nothing");
    AddSwitch("json", arguments.json,
              "print a JSON object a prompt, in the order of the prompts, and one with statistics");
  }

  absl::Status Parse(int argc, const char* const* argv) {
    std::vector<std::string> flags;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--") {
        arguments_.texts.insert(arguments_.texts.end(), argv + i + 1, argv + argc);
        break;
      }
      if (word.size() < 2 || word[0] != '-') {
        arguments_.texts.push_back(word);
        continue;
      }
      const std::string flag = word.substr(word[1] == '-' ? 2 : 1);
      const size_t equals = flag.find('=');
      const std::string name = flag.substr(0, equals);
      std::optional<std::string> value;
      if (equals != std::string::npos) value = flag.substr(equals + 1);
      if (!IsValued(name)) {
        flags.push_back(IsSwitch(name) || name.substr(0, 2) != "no" || !IsSwitch(name.substr(2))
                            ? absl::StrCat("--", flag)
                            : absl::StrCat("--", name.substr(2), "=false"));
        continue;
      }
      if (!value.has_value()) {
        if (++i == argc) {
          return absl::InvalidArgumentError(
              absl::StrCat("--", name, " must be followed by a value"));
        }
        value = argv[i];
      }
      if (name == "prompt" || name == "stop") {
        (name == "prompt" ? arguments_.texts : arguments_.stops).push_back(*value);
      } else {
        flags.insert(flags.end(), {absl::StrCat("--", name), *value});
      }
    }
    std::reverse(flags.begin(), flags.end());  // CLI11 takes them from the back
    try {
      app_.parse(flags);
    } catch (const CLI::CallForHelp&) {
      help_ = app_.help();
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(error.what());
    }
    return absl::OkStatus();
  }

  const std::optional<std::string>& help() const { return help_; }

 private:
  bool IsSwitch(const std::string& name) const {
    const CLI::Option* const option = Find(name);
    return option != nullptr && option->get_expected_min() == 0;
  }
  bool IsValued(const std::string& name) const {
    const CLI::Option* const option = Find(name);
    return option != nullptr && option->get_expected_min() != 0;
  }
  const CLI::Option* Find(const std::string& name) const {
    return app_.get_option_no_throw(absl::StrCat("--", name));
  }

  template <typename Take>
  CLI::Option* Add(const char* name, const char* type, const char* description, Take take) {
    const CLI::callback_t callback = [take](const CLI::results_t& results) {
      return take(results.front());
    };
    return app_.add_option(absl::StrCat("--", name), callback, description)->type_name(type);
  }

  void AddText(const char* name, std::optional<std::string>& text, const char* description) {
    Add(name, "TEXT", description, [&text](const std::string& value) {
      text = value;
      return true;
    });
  }
  void AddPath(const char* name, std::optional<std::string>& path, const char* description) {
    Add(name, "PATH", description, [&path](const std::string& value) {
      path = ResolveUserPath(value);
      return true;
    });
  }
  void AddChoice(const char* name, std::string& text, const char* description) {
    Add(name, "TEXT", description, [&text](const std::string& value) {
      text = value;
      return true;
    })->default_str(text);
  }
  template <typename Number>
  void AddNumber(const char* name, Number& number, const char* description) {
    Add(name, "NUMBER", description, [&number](const std::string& value) {
      return ParseNumber(value, &number);
    })->default_str(absl::StrCat(number));
  }
  template <typename Number>
  void AddNumber(const char* name, std::optional<Number>& number, const char* description) {
    Add(name, "NUMBER", description,
        [&number](const std::string& value) { return ParseNumber(value, &number.emplace()); });
  }
  void AddSwitch(const char* name, bool& value, const char* description) {
    app_.add_flag(absl::StrCat("--", name), value, description);
  }

  DecodeArguments& arguments_;
  CLI::App app_{
      "Continues texts with a model.\n\n"
      "  decode --prompt \"LOGIC, n.\" --max_new_tokens 100\n"
      "  decode --model DIR --batch prompts.jsonl --temperature 0.8 --top_p 0.95 --json",
      "decode"};
  std::optional<std::string> help_;
};

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
  if (arguments.log_probs >= 0 && !arguments.json) {
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
  if (arguments.draft != kNgram) draft.model = arguments.draft;
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

absl::StatusOr<ParsedFlags> ParseDecodeFlags(int argc, const char* const* argv) {
  ParsedFlags parsed;
  DecodeFlags flags(parsed.arguments);
  REPRISE_RETURN_IF_ERROR(flags.Parse(argc, argv));
  parsed.help = flags.help();
  return parsed;
}

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
  options.model = arguments.model;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_new_tokens", 1, arguments.max_new_tokens));
  options.max_new_tokens = arguments.max_new_tokens;
  options.stop = arguments.ignore_eos ? StopChoice::kAtLengthOnly : StopChoice::kAtEndOfText;
  REPRISE_ASSIGN_OR_RETURN(options.sampling, SamplingOf(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.dtype, Choose("dtype", arguments.dtype, kDTypes));
  REPRISE_ASSIGN_OR_RETURN(options.device, Choose("device", arguments.device, kDevices));
  REPRISE_RETURN_IF_ERROR(AtLeast("ranks", 1, arguments.ranks.value_or(1)));
  options.num_ranks = arguments.ranks;
  REPRISE_ASSIGN_OR_RETURN(options.graphs, Choose("graphs", arguments.graphs, kGraphs));
  REPRISE_RETURN_IF_ERROR(AtLeast("block_size", 1, arguments.block_size));
  options.block_size = arguments.block_size;
  // The null block, and one to use.
  REPRISE_RETURN_IF_ERROR(AtLeast("num_blocks", 2, arguments.num_blocks.value_or(2)));
  options.num_blocks = arguments.num_blocks;
  REPRISE_RETURN_IF_ERROR(AtLeast("prefill_chunk", 0, arguments.prefill_chunk.value_or(0)));
  if (arguments.prefill_chunk != 0) options.prefill_chunk = arguments.prefill_chunk;
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

}  // namespace reprise
