#include "reprise/hf/fp8_config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"

namespace reprise {

namespace {

// The method of a file that does not name one; empty if its members do not tell.
std::string MethodOfMembers(const JsonFields& given) {
  // The bits of an integer format, whose files have some of the members below, too.
  if (given.Find("bits") != nullptr) return "";
  for (const char* const name : {"quant_algo", "kv_cache_quant_algo"}) {
    if (given.Find(name) != nullptr) return "modelopt";
  }
  if (given.Find("format") != nullptr) return "compressed-tensors";
  for (const char* const name : {"fmt", "weight_block_size", "activation_scheme"}) {
    if (given.Find(name) != nullptr) return "fp8";
  }
  return "";
}

absl::Status CheckCompressedTensors(const JsonFields& given) {
  REPRISE_ASSIGN_OR_RETURN(const std::string format, given.String("format"));
  if (format == "float-quantized" || format == "naive-quantized" || format == "dense") {
    return absl::OkStatus();
  }
  return given.Unexpected("format", "\"float-quantized\", \"naive-quantized\" or \"dense\"");
}

absl::Status CheckModelopt(const JsonFields& given) {
  if (given.Find("quant_algo") == nullptr && given.Find("kv_cache_quant_algo") != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(const std::string cache, given.String("kv_cache_quant_algo"));
    if (cache == "FP8") return absl::OkStatus();
    return given.Unexpected("kv_cache_quant_algo", "\"FP8\"");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::string weights, given.String("quant_algo"));
  if (weights == "FP8" || weights == "FP8_PER_CHANNEL_PER_TOKEN") return absl::OkStatus();
  return given.Unexpected("quant_algo", "\"FP8\" or \"FP8_PER_CHANNEL_PER_TOKEN\"");
}

absl::Status CheckFp8Members(const JsonFields& given) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> format, given.OptionalString("fmt"));
  if (format.has_value() && *format != "e4m3") return given.Unexpected("fmt", "\"e4m3\"");
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> block,
                           given.OptionalInts("weight_block_size", {.min = 1}));
  if (block.has_value() && *block != std::vector<int64_t>{128, 128}) {
    return given.Unexpected("weight_block_size", "[128, 128]");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AcceptFp8Weights(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> given,
                           fields.OptionalObject("quantization_config"));
  if (!given.has_value()) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> named,
                           given->OptionalString("quant_method"));
  const std::string method = named.value_or(MethodOfMembers(*given));
  if (method == "compressed-tensors") return CheckCompressedTensors(*given);
  if (method == "modelopt") return CheckModelopt(*given);
  if (method == "fp8" || method == "fbgemm_fp8") return CheckFp8Members(*given);
  return given->Unexpected("quant_method",
                           "\"fp8\", \"fbgemm_fp8\", \"modelopt\" or \"compressed-tensors\", as "
                           "other quantization is not supported");
}

int Fp8BlockColumns(const JsonFields& fields) {
  constexpr int kBlock = 128;
  const nlohmann::json* const given = fields.Find("quantization_config");
  if (given == nullptr) return 1;
  if (given->contains("weight_block_size") && !(*given)["weight_block_size"].is_null()) {
    return kBlock;
  }
  const auto groups = given->find("config_groups");
  if (groups == given->end() || !groups->is_object()) return 1;
  for (const auto& [name, group] : groups->items()) {
    const nlohmann::json weights =
        group.is_object() ? group.value("weights", nlohmann::json()) : nlohmann::json();
    if (weights.is_object() && weights.value("strategy", nlohmann::json()) == "block")
      return kBlock;
  }
  return 1;
}

}  // namespace reprise
