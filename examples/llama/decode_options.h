// What the command line of decode asks for, checked.
//
//   DecodeArguments arguments = {.texts = {"hacker\n"}, .dtype = "float32"};   // as typed
//   REPRISE_ASSIGN_OR_RETURN(DecodeOptions options, MakeDecodeOptions(arguments));
//
// Thread safety: pure functions; files named by the arguments are read.

#ifndef EXAMPLES_LLAMA_DECODE_OPTIONS_H_
#define EXAMPLES_LLAMA_DECODE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/prompt.h"
#include "runner/sampling_params.h"

namespace reprise {

// The values of the flags; what was not given is absent or has the flag's default. Paths are
// resolved (examples/llama/user_path.h).
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
  uint64_t seed = 0;
  std::string dtype = "auto";
  std::string device = "auto";
  std::string graphs = "on";
  int block_size = 16;
  std::optional<int> num_blocks = {};
  std::optional<int> prefill_chunk = {};
  std::optional<std::string> dump_logits = {};
  bool json = false;
};

enum class DeviceChoice : int8_t { kAuto, kCpu, kCuda };
enum class GraphChoice : int8_t { kOn, kOff };
enum class StopChoice : int8_t { kAtEndOfText, kAtLengthOnly };
enum class OutputChoice : int8_t { kText, kJson };

struct DecodeOptions {
  std::optional<std::string> model = {};  // nothing: the model that comes with the project
  std::vector<Prompt> prompts = {};       // empty: one that suits that model
  int max_new_tokens = 256;
  StopChoice stop = StopChoice::kAtEndOfText;
  SamplingParams sampling = {};
  std::optional<DType> dtype = {};  // nothing: the checkpoint's
  DeviceChoice device = DeviceChoice::kAuto;
  GraphChoice graphs = GraphChoice::kOn;
  int block_size = 16;
  std::optional<int> num_blocks = {};     // nothing: as many as the prompts can use
  std::optional<int> prefill_chunk = {};  // nothing: prompts are computed whole
  std::optional<std::string> dump_logits = {};
  OutputChoice output = OutputChoice::kText;
};

// Reads the file of --batch.
// Errors: InvalidArgument naming the flag, what was expected and what was got, for values out of
// range, prompts that no model could take, and flags that contradict each other; those of
// ReadPromptFile().
absl::StatusOr<DecodeOptions> MakeDecodeOptions(const DecodeArguments& arguments);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DECODE_OPTIONS_H_
