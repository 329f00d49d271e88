// The prompts among command-line arguments: `--prompt TEXT ...`, which may be repeated and be
// followed by more texts.
//
//   PromptArguments arguments(argc, argv);       // decode --prompt a b --top_k 5 --prompt=-c
//   std::vector<char*> rest = absl::ParseCommandLine(arguments.argc(), arguments.argv());
//   REPRISE_ASSIGN_OR_RETURN(auto texts, arguments.Texts(rest));  // "a", "b", "-c"
//
// Abseil keeps only the last value of a repeated flag. So each --prompt, with its value, is
// replaced by a positional argument that stands for it, and found again among the positional
// arguments that the parser leaves, in the order of the command line.
//
// Ownership: holds pointers into `argv`, which must outlive it; not movable. Thread safety: none.

#ifndef EXAMPLES_LLAMA_PROMPT_ARGUMENTS_H_
#define EXAMPLES_LLAMA_PROMPT_ARGUMENTS_H_

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

class PromptArguments {
 public:
  PromptArguments(int argc, char** argv);

  PromptArguments(const PromptArguments&) = delete;
  PromptArguments& operator=(const PromptArguments&) = delete;

  // The arguments without --prompt, for the parser of the other flags.
  int argc() const { return static_cast<int>(arguments_.size()); }
  char** argv() { return arguments_.data(); }

  // The texts in `rest`: what the parser left of argv(), the program's name first.
  // Errors: InvalidArgument if the last --prompt has no value.
  absl::StatusOr<std::vector<std::string>> Texts(absl::Span<char* const> rest) const;

 private:
  struct Standin {
    std::array<char, 7> argument = {'p', 'r', 'o', 'm', 'p', 't', '\0'};
    std::string text;
  };

  std::vector<char*> arguments_;
  std::deque<Standin> standins_;  // a deque: argv() points into it
  bool value_is_missing_ = false;
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PROMPT_ARGUMENTS_H_
