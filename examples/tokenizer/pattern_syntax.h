// From the regular expressions of tokenizer.json to those of PCRE2.
//
// Hugging Face runs a tokenizer's pattern through Oniguruma. The patterns of language models use
// little of its syntax, and for that little the two libraries agree after small changes: "\s"
// becomes \p{White_Space}, as PCRE2's own has one character more. Whatever might mean something
// else in PCRE2 is refused, never passed on to give other tokens.

#ifndef EXAMPLES_TOKENIZER_PATTERN_SYNTAX_H_
#define EXAMPLES_TOKENIZER_PATTERN_SYNTAX_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

// Understood: literals; . ^ $ |; (?:) (?i:) (?=) (?!) (?<=) (?<!) (?>) and plain groups; * + ? with
// ? or + behind, {n} {n,} {n,m}; [] without nesting; \p{} \P{} \s \S \d \D \r \n \t \x{} and
// escaped ASCII punctuation. The result is for PCRE2_UTF and PCRE2_MULTILINE, with LF as the only
// new line.
// Errors: InvalidArgument, naming the construct and its byte offset, for all else. A pattern that
// is understood may still be malformed: PCRE2 says so. REQUIRES: `pattern` is UTF-8.
absl::StatusOr<std::string> ToPcre2Syntax(std::string_view pattern);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_PATTERN_SYNTAX_H_
