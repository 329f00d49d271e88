#include "examples/decode/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "examples/decode/engine_flags.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

struct CommandHelp {
  DecodeCommand command;
  const char* name;
  const char* text;
};
constexpr std::array<CommandHelp, 5> kCommands = {
    {{DecodeCommand::kRun, "run",
      "Continues texts with a model.\n\n"
      "  decode --prompt \"LOGIC, n.\" --max_new_tokens 100\n"
      "  decode --model DIR --batch prompts.jsonl --temperature 0.8 --top_p 0.95 --json\n\n"
      "Other commands, each with a --help of its own: decode chat, serve, bench, perplexity"},
     {DecodeCommand::kChat, "chat",
      "A conversation: each line of input gets an answer. Ctrl-C ends an answer, Ctrl-D the\n"
      "conversation; /clear begins another.\n\n"
      "  decode chat --model DIR --system \"Be brief.\" --temperature 0.7"},
     {DecodeCommand::kServe, "serve",
      "Takes requests as lines of JSON, from standard input or from the clients of a Unix socket,\n"
      "and writes events as lines of JSON (docs/serve.md).\n\n"
      "  echo '{\"id\":1,\"prompt\":\"LOGIC, n.\"}' | decode serve\n"
      "  decode serve --model DIR --socket /run/user/1000/decode.sock\n\n"
      "Flags of sampling are the defaults of requests."},
     {DecodeCommand::kBench, "bench",
      "Measures how many tokens a second a model computes, of prompts and of texts.\n\n"
      "  decode bench --model DIR --batches 1,32 --contexts 128,4096"},
     {DecodeCommand::kPerplexity, "perplexity",
      "Scores a text: prints how well the model predicts it.\n\n"
      "  decode perplexity FILE --model DIR"}}};

const CommandHelp& HelpOf(DecodeCommand command) {
  return *std::find_if(kCommands.begin(), kCommands.end(),
                       [&](const CommandHelp& help) { return help.command == command; });
}

bool ParseNumber(const std::string& text, int* value) { return absl::SimpleAtoi(text, value); }
bool ParseNumber(const std::string& text, uint64_t* value) { return absl::SimpleAtoi(text, value); }
bool ParseNumber(const std::string& text, double* value) { return absl::SimpleAtod(text, value); }

// The values of a flag of this type, for a message. The range of a flag of type int is its own
// (options.cc), so the range of the type would mislead.
template <typename Number>
std::string ExpectedNumber() {
  if constexpr (std::is_floating_point_v<Number>) return "a number";
  if constexpr (std::is_same_v<Number, int>) return "a 32-bit integer";
  return absl::StrCat("an integer in [", std::numeric_limits<Number>::min(), ", ",
                      std::numeric_limits<Number>::max(), "]");
}

// The flags of decode. CLI11 parses their values as texts only: its own conversion reads "010" as
// 8, and accepts an empty text as no value.
class DecodeFlags {
 public:
  DecodeFlags(DecodeArguments& arguments, DecodeCommand command) : arguments_(arguments) {
    arguments.command = command;
    app_.description(HelpOf(command).text);
    app_.option_defaults()->take_last();
    app_.set_help_flag("--help", "this text");
    AddPath("model", arguments.model,
            "Hugging Face folder of a model (docs/models.md): config.json, *.safetensors and, for "
            "texts, tokenizer.json. Without it, the small model that comes with the project.");
    switch (command) {
      case DecodeCommand::kRun:
        AddPrompts();
        AddSpecialTokens();
        AddTexts();
        AddEngine();
        AddDrafts();
        AddWatch();
        AddSwitch("compare_plain", arguments.compare_plain,
                  "with --draft: run again without drafts, and print the speed of both");
        AddPath("dump_logits", arguments.dump_logits,
                "safetensors file to write: logits_<i> float32 [n, vocab], from which the n tokens "
                "of prompt i were, or in place of forced ones would have been, chosen");
        AddTrace();
        AddPath("perplexity", arguments.perplexity,
                "text file to score, as decode perplexity does: generates nothing");
        AddSwitch(
            "json", arguments.json,
            "print a JSON object a prompt, in the order of the prompts, and one with statistics");
        break;
      case DecodeCommand::kChat:
        AddText("template", arguments.chat_template,
                "how turns are written: none, llama3, chatml, mistral, llama2, gemma. Without it, "
                "as the chat_template of the folder writes them; none if it has none");
        AddText("system", arguments.system, "what the model is told before the conversation");
        AddSwitch("stats", arguments.stats,
                  "after each answer, tokens, speed, and how much of the prompt was found in the "
                  "cache");
        AddTexts();
        AddEngine();
        AddEngineFlag(MaxSeqLenFlag());
        AddDrafts();
        break;
      case DecodeCommand::kServe:
        AddPath("socket", arguments.socket,
                "Unix socket to make: serves its clients until SIGINT or SIGTERM. Without it, "
                "standard input is read to its end, and standard output has the events");
        AddSpecialTokens();
        AddTexts();
        AddEngine();
        AddEngineFlag(MaxNumSeqsFlag());
        AddEngineFlag(MaxSeqLenFlag());
        AddEngineFlag(MaxWaitingFlag());
        AddDrafts();
        AddWatch();
        break;
      case DecodeCommand::kBench:
        AddChoice("batches", arguments.batches, "sequences at a time: a list, such as 1,8,32");
        AddChoice("contexts", arguments.contexts, "tokens of a prompt: a list");
        AddNumber("num_tokens", arguments.num_tokens, "tokens to decode, a sequence");
        AddEngine();
        AddDrafts();
        AddSwitch("json", arguments.json, "print a JSON object a measurement");
        break;
      case DecodeCommand::kPerplexity:
        AddEngine();
        AddTrace();
        AddSwitch("json", arguments.json, "print a JSON object, and one with statistics");
        break;
    }
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
      return absl::OkStatus();
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(error.what());
    }
    for (const auto& [flag, is_on] : switches_) {
      if (is_on) Set(*flag, "");
    }
    return status_;
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
    Add(name, "NUMBER", description, [this, name, &number](const std::string& value) {
      Read(name, value, number);
      return true;
    })->default_str(absl::StrCat(number));
  }
  template <typename Number>
  void AddNumber(const char* name, std::optional<Number>& number, const char* description) {
    Add(name, "NUMBER", description, [this, name, &number](const std::string& value) {
      Read(name, value, number.emplace());
      return true;
    });
  }
  // Notes an error if the value is of another type.
  template <typename Number>
  void Read(const char* name, const std::string& value, Number& number) {
    if (ParseNumber(value, &number)) return;
    status_.Update(absl::InvalidArgumentError(absl::StrCat(
        "--", name, ": expected ", ExpectedNumber<Number>(), ", got ", DescribeJson(value))));
  }
  void AddSwitch(const char* name, bool& value, const char* description) {
    app_.add_flag(absl::StrCat("--", name), value, description);
  }

  void AddPrompts() {
    Add("prompt", "TEXT",
        "text to continue; may be repeated, and followed by more texts. All run as one batch.",
        [](const std::string&) { return true; });  // Parse() keeps them
    AddText("prompt_tokens", arguments_.prompt_tokens, "token ids to continue: 1,2,3");
    AddPath("batch", arguments_.batch,
            "file with a prompt a line: a JSON string, a list of token ids, or an object with "
            "\"prompt\" or \"prompt_tokens\" and, if wanted, \"forced_tokens\", which are fed in "
            "place of sampled ones");
  }

  void AddSpecialTokens() {
    AddSwitch(
        "add_special_tokens", arguments_.add_special_tokens,
        "put the tokens of the tokenizer's template around a text, such as the BOS (default); "
        "--noadd_special_tokens for texts that already begin with it");
  }

  // What is generated, and how.
  void AddTexts() {
    AddNumber("max_new_tokens", arguments_.max_new_tokens, "tokens to generate at most, a prompt");
    AddSwitch("ignore_eos", arguments_.ignore_eos, "go on behind an end-of-text token");
    AddNumber("temperature", arguments_.temperature, "0: always the likeliest token");
    AddNumber("top_k", arguments_.top_k, "sample among so many likeliest tokens; 0: all");
    AddNumber("top_p", arguments_.top_p,
              "sample among the likeliest tokens of this total probability");
    AddNumber("min_p", arguments_.min_p,
              "sample among the tokens at least so probable as this part of the likeliest one");
    AddNumber(
        "seed", arguments_.seed,
        "of sampling: a prompt gives the same text again, alone and among others. Without it, "
        "another one each time");
    AddNumber("repetition_penalty", arguments_.repetition_penalty,
              "above 1: tokens of the prompt and of the text so far become less likely");
    AddNumber("presence_penalty", arguments_.presence_penalty,
              "subtracted from the logits of tokens of the text so far");
    AddNumber("frequency_penalty", arguments_.frequency_penalty,
              "the same, for each time that they have occurred");
    Add("stop", "TEXT",
        "the answer ends before this text, which may name special tokens; may be repeated",
        [](const std::string&) { return true; });  // Parse() keeps them
    AddText("stop_tokens", arguments_.stop_tokens,
            "token ids that end the answer in addition to the end-of-text tokens: 1,2,3");
    AddSwitch("include_stop", arguments_.include_stop,
              "the answer contains the text of --stop or of the stop token that ended it");
    AddNumber("log_probs", arguments_.log_probs,
              "the log-probability of each token, and of so many likeliest tokens; -1: none. run: "
              "with --json");
  }

  void AddEngine() {
    for (const EngineFlag& flag : EngineFlags()) AddEngineFlag(flag);
  }

  void AddEngineFlag(const EngineFlag& flag) {
    if (flag.kind == EngineFlag::Kind::kSwitch) {
      AddSwitch(flag.name, switches_.emplace_back(&flag, false).second, flag.help);
      return;
    }
    const bool is_path = flag.kind == EngineFlag::Kind::kPath;
    const char* const type = is_path                                  ? "PATH"
                             : flag.kind == EngineFlag::Kind::kNumber ? "NUMBER"
                                                                      : "TEXT";
    CLI::Option* const option =
        Add(flag.name, type, flag.help, [this, &flag, is_path](const std::string& value) {
          Set(flag, is_path ? ResolveUserPath(value) : value);
          return true;
        });
    if (*flag.default_text != '\0') option->default_str(flag.default_text);
  }

  void Set(const EngineFlag& flag, const std::string& value) {
    status_.Update(flag.set(flag.name, value, arguments_));
  }

  void AddWatch() {
    AddSwitch("watch", arguments_.watch,
              "show meanwhile, on standard error: rows, blocks, hits, tokens a second. run prints "
              "texts when all are done");
  }

  void AddDrafts() {
    Add("draft", "PATH",
        "folder of a small model with the same vocabulary, whose drafts the model verifies; or "
        "ngram: drafts from the text so far. The text stays the same",
        [this](const std::string& value) {
          arguments_.draft = value == kNgramDrafts ? value : ResolveUserPath(value);
          return true;
        });
    AddNumber("num_draft_tokens", arguments_.num_draft_tokens,
              "with --draft: drafts of a sequence in a step at most; without it 4");
    Add("tree", "WIDTHSxDEPTH",
        "with --draft FOLDER, in place of --num_draft_tokens: drafts form trees of DEPTH levels; "
        "WIDTHS says, level by level, how many follow each draft of the level before, then 1: "
        "3,2x4 has 3 + 6 + 6 + 6 drafts",
        [this](const std::string& value) {
          arguments_.tree = value;
          return true;
        });
    Add("acceptance", "TEXT",
        "with --draft: same_text (default), the text of plain decoding; or rejection: rejection "
        "sampling, another text of the same distribution",
        [this](const std::string& value) {
          arguments_.acceptance = value;
          return true;
        });
  }

  void AddTrace() {
    AddPath("trace", arguments_.trace,
            "file to write: JSON for chrome://tracing and Perfetto, with the spans of each step on "
            "the host and on the device");
  }

  DecodeArguments& arguments_;
  CLI::App app_{"", "decode"};
  std::deque<std::pair<const EngineFlag*, bool>> switches_;  // bools have addresses that stay
  absl::Status status_;                                      // the first error of a value
  std::optional<std::string> help_;
};

// What texts without a flag are to the command.
absl::Status TakeTexts(DecodeArguments& arguments) {
  std::vector<std::string>& texts = arguments.texts;
  switch (arguments.command) {
    case DecodeCommand::kRun:
      return absl::OkStatus();
    case DecodeCommand::kPerplexity:
      if (texts.size() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("perplexity: expected one file, got ", texts.size()));
      }
      arguments.perplexity = ResolveUserPath(texts.front());
      texts.clear();
      return absl::OkStatus();
    case DecodeCommand::kChat:
    case DecodeCommand::kServe:
    case DecodeCommand::kBench:
      break;
  }
  if (texts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(CommandName(arguments.command)),
                                                 ": expected flags only, got ",
                                                 DescribeJson(texts.front())));
}

}  // namespace

std::string_view CommandName(DecodeCommand command) { return HelpOf(command).name; }

absl::StatusOr<ParsedFlags> ParseDecodeFlags(int argc, const char* const* argv) {
  const auto named = std::find_if(kCommands.begin(), kCommands.end(), [&](const CommandHelp& help) {
    return argc > 1 && std::string_view(argv[1]) == help.name;
  });
  const bool is_named = named != kCommands.end();
  ParsedFlags parsed;
  DecodeFlags flags(parsed.arguments, is_named ? named->command : DecodeCommand::kRun);
  REPRISE_RETURN_IF_ERROR(is_named ? flags.Parse(argc - 1, argv + 1) : flags.Parse(argc, argv));
  parsed.help = flags.help();
  if (!parsed.help.has_value()) {
    REPRISE_RETURN_IF_ERROR(TakeTexts(parsed.arguments));
  }
  return parsed;
}

}  // namespace reprise
