// Reads the "post_processor" of a tokenizer.json as what it puts around a single text: none,
// ByteLevel (which moves places in the text only), TemplateProcessing, RobertaProcessing, or a
// Sequence with one template.
//
// Errors: InvalidArgument, naming the file, the member, what was expected and what was got. Thread
// safety: a pure function.

#ifndef EXAMPLES_TOKENIZER_TEMPLATE_JSON_H_
#define EXAMPLES_TOKENIZER_TEMPLATE_JSON_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/llama/json_fields.h"

namespace reprise {

// Tokens before and after a text: BOS, mostly. A pair of texts is not our business.
struct TextTemplate {
  std::vector<int32_t> prefix = {};
  std::vector<int32_t> suffix = {};
};

absl::StatusOr<TextTemplate> ReadTemplate(const JsonFields& root);

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_TEMPLATE_JSON_H_
