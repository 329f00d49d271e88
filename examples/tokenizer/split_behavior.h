// What becomes of the matches of a pattern that splits a text.
//
//   // "a-b-" split at "-":
//   kIsolated  a - b -    kRemoved  a b    kMergedWithPrevious  a- b-    kMergedWithNext  a -b -
//
// Thread safety: pure functions.

#ifndef EXAMPLES_TOKENIZER_SPLIT_BEHAVIOR_H_
#define EXAMPLES_TOKENIZER_SPLIT_BEHAVIOR_H_

#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "examples/tokenizer/split_pattern.h"

namespace reprise {

// As in tokenizer.json. Of matches that follow each other, only the first (the last, for
// kMergedWithNext) is merged.
enum class SplitBehavior {
  kIsolated,            // each is a piece of its own
  kRemoved,             // each is left out
  kMergedWithPrevious,  // ends the piece before it
  kMergedWithNext,      // begins the piece after it
  kContiguous,          // those that follow each other are one piece
};

// The pieces in order; none is empty. REQUIRES: the parts stand one after the other in one text.
std::vector<std::string_view> Pieces(absl::Span<const TextPart> parts, SplitBehavior behavior);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_SPLIT_BEHAVIOR_H_
