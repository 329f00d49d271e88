#include "examples/llama/generation.h"

#include "nlohmann/json.hpp"

namespace reprise {

std::string ToJson(const Generation& generation) {
  nlohmann::ordered_json json;
  json["prompt_tokens"] = generation.prompt_tokens;
  json["tokens"] = generation.tokens;
  json["text"] = nullptr;
  if (generation.text.has_value()) json["text"] = *generation.text;
  json["finish_reason"] = std::string(FinishReasonName(generation.finish));
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace reprise
