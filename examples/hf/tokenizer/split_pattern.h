// Unstable: any version may change this header (docs/embedding.md).
//
// Cuts a text into the matches of a pattern and the parts between them.
//
//   REPRISE_ASSIGN_OR_RETURN(SplitPattern pattern, SplitPattern::Compile(R"(\p{L}+|\s+)"));
//   pattern.Split("ab  c!");  // {"ab", true}, {"  ", true}, {"c", true}, {"!", false}
//
// \p{} and case are those of PCRE2's version of Unicode: newer characters count as unassigned,
// although Hugging Face may already assign them.
//
// A SplitBehavior defines what happens to the matches:
//
//   // "a-b-" split at "-":
//   kIsolated  a - b -    kRemoved  a b    kMergedWithPrevious  a- b-    kMergedWithNext  a -b -
//
// Thread safety: Split() may run on several threads at once.

#ifndef REPRISE_HF_TOKENIZER_SPLIT_PATTERN_H_
#define REPRISE_HF_TOKENIZER_SPLIT_PATTERN_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

struct pcre2_real_code_8;  // of PCRE2, whose header stays in the .cc

namespace reprise {

struct TextPart {
  std::string_view text;
  bool is_match = false;

  friend bool operator==(const TextPart&, const TextPart&) = default;
};

class SplitPattern {
 public:
  // `pattern` in the syntax of tokenizer.json; pattern_syntax.h lists the supported part.
  // Errors: InvalidArgument if it is not understood, malformed, too large, or may match nothing at
  // all.
  static absl::StatusOr<SplitPattern> Compile(std::string_view pattern);

  // Matches `text` literally. Errors: InvalidArgument if it is empty or too large.
  static absl::StatusOr<SplitPattern> Literal(std::string_view text);

  // The parts in order, not empty; together they are `text`. REQUIRES: `text` is UTF-8.
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

// As in tokenizer.json. If matches follow each other, only the first (for kMergedWithNext the last)
// is merged.
enum class SplitBehavior {
  kIsolated,            // each is a piece of its own
  kRemoved,             // each is left out
  kMergedWithPrevious,  // ends the piece before it
  kMergedWithNext,      // begins the piece after it
  kContiguous,          // those that follow each other are one piece
};

// The pieces in order, not empty. REQUIRES: the parts are contiguous in one text.
std::vector<std::string_view> Pieces(absl::Span<const TextPart> parts, SplitBehavior behavior);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_SPLIT_PATTERN_H_
