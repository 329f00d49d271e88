#include "examples/llama/prompt_arguments.h"

#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"

namespace reprise {

PromptArguments::PromptArguments(int argc, char** argv) {
  bool only_positional = false;  // after a lone --
  for (int i = 0; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--") only_positional = true;
    if (i == 0 || only_positional || !argument.starts_with("-")) {
      arguments_.push_back(argv[i]);
      continue;
    }
    argument.remove_prefix(argument.starts_with("--") ? 2 : 1);
    if (argument == "prompt") {
      if (i + 1 == argc) {
        value_is_missing_ = true;
        break;
      }
      standins_.push_back({.text = argv[++i]});
    } else if (argument.starts_with("prompt=")) {
      argument.remove_prefix(std::string_view("prompt=").size());
      standins_.push_back({.text = std::string(argument)});
    } else {
      arguments_.push_back(argv[i]);
      continue;
    }
    arguments_.push_back(standins_.back().argument.data());
  }
}

absl::StatusOr<std::vector<std::string>> PromptArguments::Texts(
    absl::Span<char* const> rest) const {
  if (value_is_missing_) {
    return absl::InvalidArgumentError("--prompt must be followed by a text");
  }
  std::vector<std::string> texts;
  for (size_t i = 1; i < rest.size(); ++i) {
    const auto standin = absl::c_find_if(
        standins_, [&](const Standin& candidate) { return candidate.argument.data() == rest[i]; });
    texts.push_back(standin != standins_.end() ? standin->text : std::string(rest[i]));
  }
  return texts;
}

}  // namespace reprise
