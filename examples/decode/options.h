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
#include "absl/time/time.h"
#include "base/dtype.h"
#include "cache/storage/kv_layout.h"
#include "engine/request.h"
#include "examples/decode/flags.h"
#include "examples/decode/prompt.h"
#include "runner/speculation/speculation_options.h"

namespace reprise {

enum class DeviceChoice : int8_t { kAuto, kCpu, kCuda };
enum class GraphChoice : int8_t { kOn, kOff };
enum class StopChoice : int8_t { kAtEndOfText, kAtLengthOnly };
enum class KvScaleChoice : int8_t { kPerLayer, kPerHead };  // KvScaleShape

// Speculative decoding (docs/speculation.md).
struct DraftChoice {
  std::optional<std::string> model = {};  // nullopt: drafts from the sequence's own tokens
  int num_tokens = 4;                     // the most of a row
  std::vector<int> tree = {};             // SpeculationOptions::tree; empty: chains
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  bool compares_plain = false;  // the run is repeated without drafts, for its speed
};

// Options of the runner and the engine that a user may change (runner/model_runner_options.h,
// engine/engine.h). nullopt: theirs.
struct RunnerChoice {
  std::optional<int> max_num_tokens = {};  // of a step
  std::optional<DType> kv_dtype = {};
  std::optional<int64_t> kv_memory_bytes = {};
  KvOrder kv_order = KvOrder::kNHD;
  KvForm kv_form = KvForm::kPair;
  KvScaleChoice kv_scales = KvScaleChoice::kPerLayer;
  bool calibrates_kv = false;
  std::optional<int64_t> graph_memory_bytes = {};
  int num_swap_blocks = 0;
  std::vector<int> graph_sizes = {};
  std::optional<bool> mixed_graphs = {};
  std::optional<bool> cascade = {};
  std::optional<int> steps_in_flight = {};
  bool reuses_prefixes = true;
  bool is_batch_invariant = false;
  bool attention_in_graphs = true;
  bool checks_replays = false;
  std::string linear_choices_file = {};  // empty: none
};

// Of bench: each batch with each context.
struct BenchChoice {
  std::vector<int> batches = {1, 8, 32};
  std::vector<int> contexts = {128, 1024};  // tokens of a prompt
  int num_tokens = 32;                      // to decode, a sequence
};

enum class OutputChoice : int8_t { kText, kJson };

struct DecodeOptions {
  DecodeCommand command = DecodeCommand::kRun;
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
  // Whether they divide the keys of each sequence, not the weights; or both, over a grid of which so
  // many divide the keys (distributed/rank_grid.h). nullopt: all do.
  bool divides_context = false;
  std::optional<int> context_ranks = {};
  absl::Duration rank_timeout = absl::Seconds(60);  // as in ConnectOptions
  GraphChoice graphs = GraphChoice::kOn;
  int block_size = 16;
  std::optional<int> num_blocks = {};     // nullopt: as many as the prompts can use
  std::optional<int> prefill_chunk = {};  // nullopt: prompts are computed whole
  // Of serve and chat. nullopt: as ServingEngineOptions() has it.
  std::optional<int> max_num_seqs = {};
  std::optional<int> max_seq_len = {};
  int max_waiting = 0;                     // as in EngineOptions
  std::optional<std::string> socket = {};  // nullopt: standard input and output
  // Of chat. nullopt: the folder's (ChatTemplateOf()).
  std::optional<std::string> chat_template = {};
  std::string system = {};
  bool shows_stats = false;
  BenchChoice bench = {};
  RunnerChoice runner = {};
  bool watches = false;                   // shows a view of the engine on standard error meanwhile
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

// How often an engine without work tells the other ranks so (StepEngine::Idle()): well below
// rank_timeout.
absl::Duration IdleInterval(const DecodeOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_OPTIONS_H_
