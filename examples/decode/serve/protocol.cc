#include "examples/decode/serve/protocol.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/decode/transcripts.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/strict_json.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

using nlohmann::json;

// As a float32 they are finite, and not 0 where they divide.
constexpr double kMost = 1e6;

absl::StatusOr<std::string> IdOf(const JsonFields& fields, std::string_view name) {
  constexpr size_t kMaxIdBytes = 256;
  const json* const value = fields.Find(name);
  const bool is_id =
      value != nullptr &&
      (value->is_number_integer() ||
       (value->is_string() && value->get_ref<const std::string&>().size() <= kMaxIdBytes));
  if (is_id) return value->dump();
  return absl::InvalidArgumentError(
      absl::StrCat("line: ", std::string(name), ": expected a text of at most ", kMaxIdBytes,
                   " bytes or an integer, got ", value == nullptr ? "none" : DescribeJson(*value)));
}

absl::StatusOr<std::vector<std::string>> StopsOf(const JsonFields& fields) {
  const json& value = *fields.Find("stop");
  const json list = value.is_array() ? value : json::array({value});
  std::vector<std::string> stops;
  for (const json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      return fields.Unexpected("stop", "a text or a list of texts, none of them empty");
    }
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

absl::Status ReadFloat(const JsonFields& fields, const char* name, DoubleRange range,
                       float& value) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> given, fields.OptionalDouble(name, range));
  if (given.has_value()) value = static_cast<float>(*given);
  return absl::OkStatus();
}

// Above 0 as a float32, as the engine requires.
absl::Status ReadTopP(const JsonFields& fields, float& value) {
  const absl::Status status = ReadFloat(fields, "top_p", {.min = 0, .max = 1}, value);
  if (status.ok() && value > 0) return absl::OkStatus();
  return fields.Unexpected("top_p", "a number in (0, 1]");
}

absl::Status ReadInt(const JsonFields& fields, const char* name, IntRange range, int& value) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> given, fields.OptionalInt(name, range));
  if (given.has_value()) value = static_cast<int>(*given);
  return absl::OkStatus();
}

// As --seed: JsonFields::Int() ends at 2^63 - 1.
absl::Status ReadSeed(const JsonFields& fields, std::optional<uint64_t>& seed) {
  const json* const given = fields.Find("seed");
  if (given == nullptr) return absl::OkStatus();
  if (!given->is_number_unsigned()) {
    return fields.Unexpected("seed", "an integer in [0, 18446744073709551615]");
  }
  seed = given->get<uint64_t>();
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& fields, SamplingOptions& sampling) {
  constexpr DoubleRange kPenalties = {.min = -kMost, .max = kMost};
  constexpr IntRange kInts = {.min = 0, .max = std::numeric_limits<int32_t>::max()};
  REPRISE_RETURN_IF_ERROR(
      ReadFloat(fields, "temperature", {.min = 0, .max = kMost}, sampling.temperature));
  REPRISE_RETURN_IF_ERROR(ReadInt(fields, "top_k", kInts, sampling.top_k));
  REPRISE_RETURN_IF_ERROR(ReadTopP(fields, sampling.top_p));
  REPRISE_RETURN_IF_ERROR(ReadFloat(fields, "min_p", {.min = 0, .max = 1}, sampling.min_p));
  REPRISE_RETURN_IF_ERROR(ReadFloat(fields, "repetition_penalty", {.min = 1 / kMost, .max = kMost},
                                    sampling.repetition_penalty));
  REPRISE_RETURN_IF_ERROR(
      ReadFloat(fields, "presence_penalty", kPenalties, sampling.presence_penalty));
  REPRISE_RETURN_IF_ERROR(
      ReadFloat(fields, "frequency_penalty", kPenalties, sampling.frequency_penalty));
  return ReadSeed(fields, sampling.seed);
}

// A text or token ids, in the field that `members` names.
absl::StatusOr<Prompt> ReadPrompt(const JsonFields& fields, const PromptMembers& members) {
  json prompt = json::object();
  for (const char* const name : {members.text, members.tokens}) {
    if (const json* const value = fields.Find(name)) prompt[name] = *value;
  }
  REPRISE_ASSIGN_OR_RETURN(Prompt read, PromptOfJson(prompt, members));
  REPRISE_RETURN_IF_ERROR(CheckPrompt(read));
  return read;
}

absl::StatusOr<ServeRequest> ReadRequest(const JsonFields& fields, const DecodeOptions& defaults) {
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers({"id",
                                               "prompt",
                                               "prompt_tokens",
                                               "add_special_tokens",
                                               "max_new_tokens",
                                               "ignore_eos",
                                               "temperature",
                                               "top_k",
                                               "top_p",
                                               "min_p",
                                               "seed",
                                               "repetition_penalty",
                                               "presence_penalty",
                                               "frequency_penalty",
                                               "stop",
                                               "stop_tokens",
                                               "include_stop",
                                               "log_probs",
                                               "priority",
                                               "timeout_s",
                                               "predicted",
                                               "predicted_tokens"}));
  ServeRequest request = {.options = defaults};
  absl::StatusOr<Prompt> prompt = ReadPrompt(fields, {});
  if (!prompt.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("line: prompt: ", prompt.status().message()));
  }
  request.prompt = *std::move(prompt);
  if (fields.Find("predicted") != nullptr || fields.Find("predicted_tokens") != nullptr) {
    absl::StatusOr<Prompt> predicted =
        ReadPrompt(fields, {.text = "predicted", .tokens = "predicted_tokens"});
    if (!predicted.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line: predicted: ", predicted.status().message()));
    }
    request.predicted = *std::move(predicted);
  }
  constexpr int kMaxInt = std::numeric_limits<int32_t>::max();
  REPRISE_RETURN_IF_ERROR(ReadInt(fields, "max_new_tokens", {.min = 1, .max = kMaxInt},
                                  request.options.max_new_tokens));
  REPRISE_RETURN_IF_ERROR(ReadInt(fields, "log_probs", {.min = -1, .max = kMaxTopLogProbs},
                                  request.options.num_log_probs));
  REPRISE_RETURN_IF_ERROR(
      ReadInt(fields, "priority", {.min = -kMaxInt, .max = kMaxInt}, request.priority));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> adds_special_tokens,
                           fields.OptionalBool("add_special_tokens"));
  request.options.adds_special_tokens = adds_special_tokens.value_or(defaults.adds_special_tokens);
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> ignores_end,
                           fields.OptionalBool("ignore_eos"));
  if (ignores_end.has_value()) {
    request.options.stop = *ignores_end ? StopChoice::kAtLengthOnly : StopChoice::kAtEndOfText;
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> timeout,
                           fields.OptionalDouble("timeout_s", {.min = 0, .max = kMost}));
  if (timeout.has_value()) request.timeout = absl::Seconds(*timeout);
  if (fields.Find("stop") != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(request.options.stops.texts, StopsOf(fields));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> stop_tokens,
                           fields.OptionalInts("stop_tokens", {.min = 0, .max = kMaxInt}));
  if (stop_tokens.has_value()) {
    request.options.stop_tokens.assign(stop_tokens->begin(), stop_tokens->end());
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> includes_stop,
                           fields.OptionalBool("include_stop"));
  if (includes_stop.has_value()) request.options.stops.is_included = *includes_stop;
  REPRISE_RETURN_IF_ERROR(ReadSampling(fields, request.options.sampling));
  return request;
}

}  // namespace

ServeLine ParseServeLine(std::string_view line, const DecodeOptions& defaults) {
  const absl::StatusOr<json> value = ParseJson(line, {.max_depth = 4, .max_values = 1'000'000});
  if (!value.ok()) return {.command = value.status()};
  const absl::StatusOr<JsonFields> fields = JsonFields::Of(*value, "line");
  if (!fields.ok()) return {.command = fields.status()};
  const bool cancels = fields->Find("cancel") != nullptr;
  absl::StatusOr<std::string> id = IdOf(*fields, cancels ? "cancel" : "id");
  if (!id.ok()) return {.command = id.status()};
  if (cancels) {
    if (absl::Status status = fields->RefuseOthers({"cancel"}); !status.ok()) {
      return {.id = *std::move(id), .command = std::move(status)};
    }
    return {.id = *std::move(id), .command = ServeCancel()};
  }
  absl::StatusOr<ServeRequest> request = ReadRequest(*fields, defaults);
  if (!request.ok()) return {.id = *std::move(id), .command = request.status()};
  return {.id = *std::move(id), .command = *std::move(request)};
}

namespace {

std::string Quoted(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string TokenEventLine(std::string_view id, const TokenEvent& event,
                           const std::optional<std::string>& text) {
  return absl::StrCat(
      R"({"event":"token","id":)", std::string(id), R"(,"token":)", *event.token, R"(,"text":)",
      text.has_value() ? Quoted(*text) : "null",
      event.log_probs.has_value() ? absl::StrCat(R"(,"log_probs":)", ToJson(*event.log_probs)) : "",
      "}");
}

std::string EndEventLine(std::string_view id, const TokenEvent& event, std::string_view text,
                         const ServeUsage& usage) {
  return absl::StrCat(
      R"({"event":"end","id":)", std::string(id), R"(,"finish_reason":")",
      std::string(FinishReasonName(event.finish)), "\"",
      text.empty() ? "" : absl::StrCat(R"(,"text":)", Quoted(text)),
      R"(,"usage":{"prompt_tokens":)", usage.num_prompt_tokens, R"(,"cached_tokens":)",
      event.num_cached_tokens, R"(,"generated_tokens":)", usage.num_generated_tokens, "}",
      event.error.ok() ? ""
                       : absl::StrCat(R"(,"error":)", Quoted(std::string(event.error.message()))),
      "}");
}

std::string ErrorEventLine(int64_t line, std::string_view id, const absl::Status& error) {
  return absl::StrCat(R"({"event":"error","line":)", line,
                      id.empty() ? "" : absl::StrCat(R"(,"id":)", std::string(id)), R"(,"error":)",
                      Quoted(std::string(error.message())), "}");
}

}  // namespace reprise
