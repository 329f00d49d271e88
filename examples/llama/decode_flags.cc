#include "examples/llama/decode_flags.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/prompt_arguments.h"
#include "examples/llama/user_path.h"

namespace reprise {

// A text that was given, be it empty, or not.
struct TextFlag {
  std::optional<std::string> value;
};

bool AbslParseFlag(absl::string_view text, TextFlag* flag, std::string*) {
  flag->value = std::string(text);
  return true;
}

std::string AbslUnparseFlag(const TextFlag& flag) { return flag.value.value_or(""); }

}  // namespace reprise

ABSL_FLAG(
    reprise::TextFlag, model, {},
    "Hugging Face folder of a model (docs/models.md): config.json, *.safetensors and, for texts, "
    "tokenizer.json. Without it, the small model that comes with the project.");
ABSL_FLAG(reprise::TextFlag, prompt, {},
          "text to continue; may be repeated, and followed by more texts. All run as one batch.");
ABSL_FLAG(reprise::TextFlag, prompt_tokens, {}, "token ids to continue: 1,2,3");
ABSL_FLAG(reprise::TextFlag, batch, {},
          "file with a prompt a line: a JSON string, a list of token ids, or an object with "
          "\"prompt\" or \"prompt_tokens\" and, if wanted, \"forced_tokens\", which are fed in "
          "place of sampled ones");
ABSL_FLAG(int32_t, max_new_tokens, 256, "tokens to generate at most, a prompt");
ABSL_FLAG(bool, ignore_eos, false, "go on behind an end-of-text token");
ABSL_FLAG(double, temperature, 0, "0: always the likeliest token");
ABSL_FLAG(int32_t, top_k, 0, "sample among so many likeliest tokens; 0: all");
ABSL_FLAG(double, top_p, 1, "sample among the likeliest tokens of this total probability");
ABSL_FLAG(uint64_t, seed, 0, "of sampling; a prompt gives the same text alone and among others");
ABSL_FLAG(std::string, dtype, "auto",
          "of weights, activations and cache: auto (the checkpoint's), float32, bfloat16, float16");
ABSL_FLAG(std::string, device, "auto", "auto (a GPU if there is one), cpu, cuda");
ABSL_FLAG(std::string, graphs, "on", "on: decode steps are captured once and replayed; off");
ABSL_FLAG(int32_t, block_size, 16, "tokens a block of the KV cache");
ABSL_FLAG(absl::optional<int32_t>, num_blocks, absl::nullopt,
          "blocks of the KV cache, the null block included; without it, as many as the prompts can "
          "use");
ABSL_FLAG(absl::optional<int32_t>, prefill_chunk, absl::nullopt,
          "prompt tokens computed in a step at most, a sequence; without it or 0, up to 512");
ABSL_FLAG(reprise::TextFlag, dump_logits, {},
          "safetensors file to write: logits_<i> float32 [n, vocab], from which the n tokens of "
          "prompt i were, or in place of forced ones would have been, chosen");
ABSL_FLAG(bool, json, false,
          "print a JSON object a prompt, in the order of the prompts, and one with statistics");

namespace reprise {
namespace {

std::optional<std::string> PathOf(const absl::Flag<TextFlag>& flag) {
  std::optional<std::string> path = absl::GetFlag(flag).value;
  if (path.has_value()) path = ResolveUserPath(*path);
  return path;
}

std::optional<int> IntOf(const absl::Flag<absl::optional<int32_t>>& flag) {
  const absl::optional<int32_t> value = absl::GetFlag(flag);
  if (!value.has_value()) return std::nullopt;
  return *value;
}

void SetUpHelp() {
  absl::SetProgramUsageMessage(
      "Continues texts with a Llama model.\n\n"
      "  decode --prompt \"LOGIC, n.\" --max_new_tokens 100\n"
      "  decode --model DIR --batch prompts.jsonl --temperature 0.8 --top_p 0.95 --json");
  // The flags stand in this file, not in that of main().
  absl::FlagsUsageConfig config;
  config.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "decode_flags");
  };
  config.contains_helpshort_flags = config.contains_help_flags;
  absl::SetFlagsUsageConfig(config);
}

}  // namespace

absl::StatusOr<DecodeOptions> ParseDecodeFlags(int argc, char** argv) {
  SetUpHelp();
  PromptArguments prompts(argc, argv);
  const std::vector<char*> rest = absl::ParseCommandLine(prompts.argc(), prompts.argv());
  DecodeArguments arguments;
  REPRISE_ASSIGN_OR_RETURN(arguments.texts, prompts.Texts(rest));
  arguments.model = PathOf(FLAGS_model);
  arguments.prompt_tokens = absl::GetFlag(FLAGS_prompt_tokens).value;
  arguments.batch = PathOf(FLAGS_batch);
  arguments.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  arguments.ignore_eos = absl::GetFlag(FLAGS_ignore_eos);
  arguments.temperature = absl::GetFlag(FLAGS_temperature);
  arguments.top_k = absl::GetFlag(FLAGS_top_k);
  arguments.top_p = absl::GetFlag(FLAGS_top_p);
  arguments.seed = absl::GetFlag(FLAGS_seed);
  arguments.dtype = absl::GetFlag(FLAGS_dtype);
  arguments.device = absl::GetFlag(FLAGS_device);
  arguments.graphs = absl::GetFlag(FLAGS_graphs);
  arguments.block_size = absl::GetFlag(FLAGS_block_size);
  arguments.num_blocks = IntOf(FLAGS_num_blocks);
  arguments.prefill_chunk = IntOf(FLAGS_prefill_chunk);
  arguments.dump_logits = PathOf(FLAGS_dump_logits);
  arguments.json = absl::GetFlag(FLAGS_json);
  return MakeDecodeOptions(arguments);
}

}  // namespace reprise
