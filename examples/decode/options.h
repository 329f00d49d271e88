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
#include "examples/decode/flags.h"
#include "examples/decode/prompt.h"
#include "examples/decode/text/answer_text.h"
#include "reprise/base/dtype.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/request.h"

namespace reprise {

enum class StopChoice : int8_t { kAtEndOfText, kAtLengthOnly };

// Speculative decoding (docs/speculation.md), besides ModelRunnerOptions::speculation.
struct DraftChoice {
  std::optional<std::string> model = {};  // nullopt: drafts from the sequence's own tokens
  bool compares_plain = false;            // the run is repeated without drafts, for its speed
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
  // Whether the template of the tokenizer (BOS, for most) is put around the text of a prompt.
  bool adds_special_tokens = true;
  SamplingOptions sampling = {};
  StopTexts stops = {};                   // texts that end a sequence
  std::vector<int32_t> stop_tokens = {};  // further tokens that end a sequence
  int num_log_probs = -1;                 // as in Request
  std::optional<DType> dtype = {};        // nullopt: the checkpoint's
  DeviceChoice device = DeviceChoice::kAuto;
  // Processes that the model is divided over, which the program starts. nullopt: as many as a
  // launcher has started (distributed/launch.h), or one.
  std::optional<int> num_ranks = {};
  absl::Duration rank_timeout = absl::Seconds(60);  // as in ConnectOptions
  // Options of the runner and the engine, as the flags set them. The sizes of a run follow from its
  // requests (requests.h): max_num_seqs are those of serve; a max_seq_len of nullopt, and a
  // prefill_chunk of 0, are chosen. A draft model is set when it is loaded.
  ModelEngineOptions engine = {.runner = {.max_num_seqs = kServingRows}};
  std::optional<std::string> socket = {};  // nullopt: standard input and output
  // Of chat. nullopt: the folder's (ChatTemplateOf()).
  std::optional<std::string> chat_template = {};
  std::string system = {};
  bool shows_stats = false;
  BenchChoice bench = {};
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

// How often an engine without work tells the other ranks so (Engine::Idle()): well below
// rank_timeout.
absl::Duration IdleInterval(const DecodeOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_OPTIONS_H_
