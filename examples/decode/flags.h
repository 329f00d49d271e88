// The flags of decode, as typed.
//
//   REPRISE_ASSIGN_OR_RETURN(const ParsedFlags flags, ParseDecodeFlags(argc, argv));
//
// The first word may be a command: run, chat, serve, bench, perplexity. Without one it is run. Each
// command has flags of its own; one of another command is unknown to it.
//
// Thread safety: pure functions.

#ifndef EXAMPLES_DECODE_FLAGS_H_
#define EXAMPLES_DECODE_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/engine/create_engine.h"

namespace reprise {

enum class DecodeCommand : int8_t {
  kRun,         // continues prompts
  kChat,        // a conversation
  kServe,       // requests and events as lines of JSON
  kBench,       // measures speed
  kPerplexity,  // scores a text
};

enum class DeviceChoice : int8_t { kAuto, kCpu, kCuda };

// Sequences that serve runs at the same time, without --max_num_seqs.
inline constexpr int kServingRows = 16;

// The value of --draft that names no folder.
inline constexpr char kNgramDrafts[] = "ngram";

// "run", "chat", "serve", "bench", "perplexity".
std::string_view CommandName(DecodeCommand command);

// The values of the flags; a flag that was not given is absent or has its default. Paths are
// resolved (examples/hf/paths.h).
struct DecodeArguments {
  DecodeCommand command = DecodeCommand::kRun;
  std::optional<std::string> model = {};
  std::vector<std::string> texts = {};  // prompts; of perplexity, the file
  std::optional<std::string> prompt_tokens = {};
  std::optional<std::string> batch = {};
  int max_new_tokens = 256;
  bool ignore_eos = false;
  bool add_special_tokens = true;
  double temperature = 0;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  std::optional<uint64_t> seed = {};
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::string> stops = {};
  std::optional<std::string> stop_tokens = {};
  bool include_stop = false;
  int log_probs = -1;
  std::optional<DType> dtype = {};  // nullopt: the checkpoint's
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<int> ranks = {};
  int rank_timeout = 60;  // seconds
  std::optional<std::string> socket = {};
  std::optional<std::string> chat_template = {};
  std::optional<std::string> system = {};
  bool stats = false;
  std::string batches = "1,8,32";
  std::string contexts = "128,1024";
  int num_tokens = 32;
  // What the flags of engine_flags.h set. max_num_seqs are those of serve.
  ModelEngineOptions engine = {.runner = {.max_num_seqs = kServingRows}};
  bool watch = false;
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
// for --prompt and --stop. Boolean flags are --name, --name=false or --noname. Texts that belong to
// no flag, and all after a lone --, are prompts. A prompt that is the name of a command is given by
// --prompt. Errors: InvalidArgument naming the flag that is unknown to the command, has no value or
// a value of another type; of flags of the engine also a value out of range.
absl::StatusOr<ParsedFlags> ParseDecodeFlags(int argc, const char* const* argv);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_FLAGS_H_
