// Unstable: any version may change this header (docs/embedding.md).
//
// Translates the regular expressions of tokenizer.json to those of PCRE2.
//
// Hugging Face runs a tokenizer's pattern through Oniguruma. The patterns of language models use a
// small part of its syntax, for which the two libraries agree after small changes: "\s" becomes
// \p{White_Space}, since PCRE2's own has one character more. Constructs that might have another
// meaning in PCRE2 are refused, since they could give other tokens.

#ifndef REPRISE_HF_TOKENIZER_PATTERN_SYNTAX_H_
#define REPRISE_HF_TOKENIZER_PATTERN_SYNTAX_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

// Understood: literals; . ^ $ |; (?:) (?i:) (?=) (?!) (?<=) (?<!) (?>) and plain groups; * + ? with
// ? or + behind, {n} {n,} {n,m}; []; \p{} \P{} \s \S \d \D \r \n \t \x{} and escaped ASCII
// punctuation. The result is for PCRE2_UTF and PCRE2_MULTILINE, with LF as the only new line.
//
// PCRE2 10.42 has neither classes within classes nor &&, so these are written out, for up to 16
// levels:
//
//   [^a[bc]]    [^abc]                    an inner class adds its characters
//   [a[^b]]     (?>[a]|[^b])              so does the complement of one
//   [a-z&&[^c]] (?:(?=[a-z])(?>[^c]))     && keeps what both sides have
//
// Within (?i:), \p{}, \P{}, negated inner classes and && are refused: Oniguruma ignores case after
// it has made the set of a class, so that (?i:[\p{Lu}]) matches "a"; PCRE2 does so before.
//
// Errors: InvalidArgument, naming the construct and its byte offset, for all others. A pattern that
// is understood may still be malformed: PCRE2 reports that. REQUIRES: `pattern` is UTF-8.
absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_PATTERN_SYNTAX_H_
