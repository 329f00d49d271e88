#include "reprise/hf/fp8_config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status AcceptFp8Weights(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> given,
                           fields.OptionalObject("quantization_config"));
  if (!given.has_value()) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::string method, given->String("quant_method"));
  if (method == "compressed-tensors") {
    REPRISE_ASSIGN_OR_RETURN(const std::string format, given->String("format"));
    if (format == "float-quantized") return absl::OkStatus();
    return given->Unexpected("format", "\"float-quantized\"");
  }
  if (method != "fp8" && method != "fbgemm_fp8") {
    return given->Unexpected("quant_method",
                             "\"fp8\", \"fbgemm_fp8\" or \"compressed-tensors\", as other "
                             "quantization is not supported");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> format, given->OptionalString("fmt"));
  if (format.has_value() && *format != "e4m3") return given->Unexpected("fmt", "\"e4m3\"");
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> block,
                           given->OptionalInts("weight_block_size", {.min = 1}));
  if (block.has_value() && *block != std::vector<int64_t>{128, 128}) {
    return given->Unexpected("weight_block_size", "[128, 128]");
  }
  return absl::OkStatus();
}

}  // namespace reprise
