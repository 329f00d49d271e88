// The command line of decode, parsed and checked.
//
//   REPRISE_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseDecodeFlags(argc, argv));   // as typed
//   REPRISE_ASSIGN_OR_RETURN(DecodeOptions options, MakeDecodeOptions(flags.arguments));
//
// Thread safety: pure functions; files named by the arguments are read.

#ifndef EXAMPLES_DECODE_OPTIONS_H_
#define EXAMPLES_DECODE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "engine/request.h"
#include "examples/decode/prompt.h"
#include "runner/speculation/speculation_options.h"

namespace reprise {

// The values of the flags; a flag that was not given is absent or has its default. Paths are
// resolved (examples/hf/paths.h).
struct DecodeArguments {
  std::optional<std::string> model = {};
  std::vector<std::string> texts = {};
  std::optional<std::string> prompt_tokens = {};
  std::optional<std::string> batch = {};
  int max_new_tokens = 256;
  bool ignore_eos = false;
  double temperature = 0;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  std::optional<uint64_t> seed = {};
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::string> stops = {};
  int log_probs = -1;
  std::string dtype = "auto";
  std::string device = "auto";
  std::optional<int> ranks = {};
  std::string graphs = "on";
  int block_size = 16;
  std::optional<int> num_blocks = {};
  std::optional<int> prefill_chunk = {};
  std::optional<std::string> draft = {};
  std::optional<int> num_draft_tokens = {};
  std::optional<std::string> tree = {};
  std::optional<std::string> acceptance = {};
  bool compare_plain = false;
  std::optional<std::string> dump_logits = {};
  std::optional<std::string> trace = {};
  std::optional<std::string> perplexity = {};
  bool json = false;
};

struct ParsedFlags {
  DecodeArguments arguments = {};
  std::optional<std::string> help = {};  // the output of --help; nullopt: not requested
};

// Flags are --name value, --name=value or -name value; if one is repeated, the last counts, except
// for --prompt and --stop. Boolean flags are --name, --name=false or --noname. Texts that belong to no flag,
// and all after a lone --, are prompts. Errors: InvalidArgument naming the flag that is unknown,
// has no value or a value of another type.
absl::StatusOr<ParsedFlags> ParseDecodeFlags(int argc, const char* const* argv);

enum class DeviceChoice : int8_t { kAuto, kCpu, kCuda };
enum class GraphChoice : int8_t { kOn, kOff };
enum class StopChoice : int8_t { kAtEndOfText, kAtLengthOnly };

// Speculative decoding (docs/speculation.md).
struct DraftChoice {
  std::optional<std::string> model = {};  // nullopt: drafts from the sequence's own tokens
  int num_tokens = 4;                     // the most of a row
  std::vector<int> tree = {};             // SpeculationOptions::tree; empty: chains
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  bool compares_plain = false;  // the run is repeated without drafts, for its speed
};

enum class OutputChoice : int8_t { kText, kJson };

struct DecodeOptions {
  std::optional<std::string> model = {};  // nullopt: the model that comes with the project
  std::vector<Prompt> prompts = {};       // empty: a default prompt for that model
  int max_new_tokens = 256;
  StopChoice stop = StopChoice::kAtEndOfText;
  SamplingOptions sampling = {};
  std::vector<std::string> stops = {};  // texts that end a sequence
  int num_log_probs = -1;               // as in Request
  std::optional<DType> dtype = {};      // nullopt: the checkpoint's
  DeviceChoice device = DeviceChoice::kAuto;
  // Processes that the model is divided over, which the program starts. nullopt: as many as a launcher
  // has started (distributed/launch.h), or one.
  std::optional<int> num_ranks = {};
  GraphChoice graphs = GraphChoice::kOn;
  int block_size = 16;
  std::optional<int> num_blocks = {};     // nullopt: as many as the prompts can use
  std::optional<int> prefill_chunk = {};  // nullopt: prompts are computed whole
  std::optional<DraftChoice> draft = {};  // nullopt: no speculation
  std::optional<std::string> dump_logits = {};
  std::optional<std::string> trace = {};
  std::optional<std::string> perplexity = {};  // a text to score; there are no prompts then
  OutputChoice output = OutputChoice::kText;
};

// Reads the file of --batch.
// Errors: InvalidArgument naming the flag, what was expected and what was got, for values out of
// range, prompts that no model could take, and flags that contradict each other; those of
// ReadPromptFile().
absl::StatusOr<DecodeOptions> MakeDecodeOptions(const DecodeArguments& arguments);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_OPTIONS_H_
