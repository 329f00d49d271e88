#include "examples/decode/perplexity.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<Request>> MakeScoringRequests(const std::string& path,
                                                         const ModelFolder& folder,
                                                         int max_position) {
  CHECK_GE(max_position, 2);
  if (!folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a text, but ", folder.WhyNoTokenizer()));
  }
  if (std::holds_alternative<BartConfig>(folder.config)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " cannot be scored: expected a model without an encoder, got ", folder.path));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  const absl::StatusOr<std::vector<int32_t>> tokens = folder.tokenizer->Encode(text);
  if (!tokens.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", tokens.status().message()));
  }
  if (tokens->size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " must have at least two tokens: got ", tokens->size()));
  }
  std::vector<Request> requests;
  const size_t window = static_cast<size_t>(max_position);
  for (size_t begin = 0; begin + 1 < tokens->size(); begin += window - 1) {
    const size_t end = std::min(begin + window, tokens->size());
    requests.push_back({.prompt = {tokens->begin() + static_cast<std::ptrdiff_t>(begin),
                                   tokens->begin() + static_cast<std::ptrdiff_t>(end)},
                        .max_new_tokens = 0,
                        .num_prompt_log_probs = 0});
  }
  return requests;
}

double PerplexityResult::perplexity() const {
  return std::exp(-log_likelihood / static_cast<double>(std::max<int64_t>(num_tokens, 1)));
}

absl::Status PerplexityMeter::Add(const TokenEvent& event) {
  if (event.prompt_log_probs == nullptr) {
    return absl::InternalError("a window has ended without log-probabilities");
  }
  for (const TokenLogProbs& token : *event.prompt_log_probs) {
    ++result_.num_tokens;
    result_.log_likelihood += token.log_prob;
  }
  return absl::OkStatus();
}

std::string ToJson(const PerplexityResult& result) {
  return nlohmann::ordered_json{{"perplexity", result.perplexity()},
                                {"tokens", result.num_tokens},
                                {"log_likelihood", result.log_likelihood}}
      .dump();
}

std::string Summary(const PerplexityResult& result) {
  return absl::StrFormat("perplexity %.4f over %d tokens", result.perplexity(), result.num_tokens);
}

}  // namespace reprise
