#include "examples/llama/decode_options.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "examples/llama/prompt_file.h"
#include "examples/llama/strict_json.h"

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

absl::StatusOr<SamplingParams> SamplingOf(const DecodeArguments& arguments) {
  // Beyond this a float32 logit divided by it is noise; infinity and NaN are no temperatures.
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
  REPRISE_RETURN_IF_ERROR(AtLeast("top_k", 0, arguments.top_k));
  return SamplingParams{.temperature = static_cast<float>(arguments.temperature),
                        .top_k = arguments.top_k,
                        .top_p = static_cast<float>(arguments.top_p),
                        .seed = arguments.seed};
}

absl::StatusOr<std::vector<Prompt>> PromptsOf(const DecodeArguments& arguments) {
  std::vector<std::string> sources;
  if (!arguments.texts.empty()) sources.push_back("--prompt");
  if (arguments.prompt_tokens.has_value()) sources.push_back("--prompt_tokens");
  if (arguments.batch.has_value()) sources.push_back("--batch");
  if (sources.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("only one of --prompt, --prompt_tokens and "
                     "--batch may be given, got ",
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
  options.model = arguments.model;
  REPRISE_RETURN_IF_ERROR(AtLeast("max_new_tokens", 1, arguments.max_new_tokens));
  options.max_new_tokens = arguments.max_new_tokens;
  options.stop = arguments.ignore_eos ? StopChoice::kAtLengthOnly : StopChoice::kAtEndOfText;
  REPRISE_ASSIGN_OR_RETURN(options.sampling, SamplingOf(arguments));
  REPRISE_ASSIGN_OR_RETURN(options.dtype, Choose("dtype", arguments.dtype, kDTypes));
  REPRISE_ASSIGN_OR_RETURN(options.device, Choose("device", arguments.device, kDevices));
  REPRISE_ASSIGN_OR_RETURN(options.graphs, Choose("graphs", arguments.graphs, kGraphs));
  REPRISE_RETURN_IF_ERROR(AtLeast("block_size", 1, arguments.block_size));
  options.block_size = arguments.block_size;
  // The null block, and one to use.
  REPRISE_RETURN_IF_ERROR(AtLeast("num_blocks", 2, arguments.num_blocks.value_or(2)));
  options.num_blocks = arguments.num_blocks;
  REPRISE_RETURN_IF_ERROR(AtLeast("prefill_chunk", 0, arguments.prefill_chunk.value_or(0)));
  if (arguments.prefill_chunk != 0) options.prefill_chunk = arguments.prefill_chunk;
  options.dump_logits = arguments.dump_logits;
  options.output = arguments.json ? OutputChoice::kJson : OutputChoice::kText;
  REPRISE_ASSIGN_OR_RETURN(options.prompts, PromptsOf(arguments));
  return options;
}

}  // namespace reprise
