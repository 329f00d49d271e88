#include "examples/llama/decode_requests.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::StatusOr<TokenList> TokensOf(const Prompt& prompt, const ModelFolder& folder) {
  if (!prompt.is_text()) return std::get<TokenList>(prompt.content);
  if (!folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a text, but ", folder.path, " has no tokenizer.json: give token ids"));
  }
  return folder.tokenizer->Encode(std::get<std::string>(prompt.content));
}

}  // namespace

absl::StatusOr<std::vector<Request>> MakeRequests(absl::Span<const Prompt> prompts,
                                                  const DecodeOptions& options,
                                                  const ModelFolder& folder) {
  std::vector<Request> requests;
  requests.reserve(prompts.size());
  for (const Prompt& prompt : prompts) {
    absl::StatusOr<TokenList> tokens = TokensOf(prompt, folder);
    if (!tokens.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", requests.size() + 1, " ", tokens.status().message()));
    }
    Request request = {.prompt = {},
                       .max_new_tokens = options.max_new_tokens,
                       .sampling = options.sampling,
                       .forced_tokens = prompt.forced_tokens};
    if (const auto* const bart = std::get_if<BartConfig>(&folder.config)) {
      request.prompt = {bart->decoder_start_token_id};
      request.encoder_tokens = *std::move(tokens);
    } else {
      request.prompt = *std::move(tokens);
    }
    if (options.stop == StopChoice::kAtEndOfText) {
      request.stop_tokens = folder.eos_token_ids();
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace reprise
