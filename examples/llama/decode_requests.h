// Prompts as what an engine is asked for.
//
//   REPRISE_ASSIGN_OR_RETURN(std::vector<Request> requests,
//                            MakeRequests(options.prompts, options, folder));

#ifndef EXAMPLES_LLAMA_DECODE_REQUESTS_H_
#define EXAMPLES_LLAMA_DECODE_REQUESTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/llama/decode_options.h"
#include "examples/llama/model_folder.h"
#include "examples/llama/prompt.h"
#include "runner/request.h"

namespace reprise {

// A request a prompt. Texts are encoded with the template of the tokenizer (BOS, for most); the
// config's end tokens end a sequence unless --ignore_eos. Of models with an encoder the prompt is
// its input, and the decoder begins with the config's first token.
// Errors: InvalidArgument, naming the prompt by number: a text that cannot be encoded, or for which
// the folder has no tokenizer. Ids beyond the vocabulary are the engine's to refuse.
absl::StatusOr<std::vector<Request>> MakeRequests(absl::Span<const Prompt> prompts,
                                                  const DecodeOptions& options,
                                                  const ModelFolder& folder);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DECODE_REQUESTS_H_
