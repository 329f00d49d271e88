// Cuts a text into what a pattern matches and what lies between its matches.
//
//   REPRISE_ASSIGN_OR_RETURN(SplitPattern pattern, SplitPattern::Compile(R"(\p{L}+|\s+)"));
//   pattern.Split("ab  c!");  // {"ab", true}, {"  ", true}, {"c", true}, {"!", false}
//
// \p{} and case are those of PCRE2's version of Unicode: characters that are newer are like
// unassigned ones, where Hugging Face may already know them.
//
// Thread safety: Split() may run on several threads at once.

#ifndef EXAMPLES_TOKENIZER_SPLIT_PATTERN_H_
#define EXAMPLES_TOKENIZER_SPLIT_PATTERN_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;  // of PCRE2, whose header stays in the .cc

namespace reprise {

struct TextPart {
  std::string_view text;
  bool is_match = false;

  friend bool operator==(const TextPart&, const TextPart&) = default;
};

class SplitPattern {
 public:
  // `pattern` in the syntax of tokenizer.json; pattern_syntax.h says what of it is understood.
  // Errors: InvalidArgument if it is not understood, malformed, too large, or may match nothing at
  // all.
  static absl::StatusOr<SplitPattern> Compile(std::string_view pattern);

  // Matches `text` as it stands. Errors: InvalidArgument if it is empty or too large.
  static absl::StatusOr<SplitPattern> Literal(std::string_view text);

  // The parts in order; none is empty, and together they are `text`. REQUIRES: `text` is UTF-8.
  // Errors: InvalidArgument if a match takes more steps or memory than any sound pattern needs.
  // Cost: for the patterns of language models linear in the text.
  absl::StatusOr<std::vector<TextPart>> Split(std::string_view text) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  static absl::StatusOr<SplitPattern> CompileAs(std::string_view pattern, uint32_t options);

  explicit SplitPattern(Code code);

  Code code_;
};

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_SPLIT_PATTERN_H_
