#include "examples/llama/config_fields.h"

#include <algorithm>

namespace reprise {

absl::StatusOr<int> ReadInt(const JsonFields& fields, std::string_view name, IntRange range) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t number, fields.Int(name, range));
  return static_cast<int>(number);
}

absl::StatusOr<std::optional<DType>> ReadWeightDType(const JsonFields& fields) {
  // The new name goes first; files of the time between have both.
  for (const char* name : {"dtype", "torch_dtype"}) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> text, fields.OptionalString(name));
    if (!text) continue;
    const std::optional<DType> dtype = ParseDType(*text);
    if (!dtype || IsFp8(*dtype)) {
      return fields.Unexpected(name, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
    }
    return dtype;
  }
  return std::optional<DType>();
}

absl::StatusOr<std::vector<int32_t>> WithEndTokens(std::vector<int32_t> known,
                                                   const JsonFields& fields, int vocab_size) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> ids,
                           fields.OptionalInts("eos_token_id", {.min = 0, .max = vocab_size - 1}));
  if (ids) known.insert(known.end(), ids->begin(), ids->end());
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return known;
}

absl::Status RefuseQuantization(const JsonFields& fields) {
  if (fields.Find("quantization_config") == nullptr) return absl::OkStatus();
  return fields.Unexpected("quantization_config", "nothing, as quantization is not supported");
}

}  // namespace reprise
