// Makes the requests of prompts, and the options of an engine that is large enough for them.
//
//   REPRISE_ASSIGN_OR_RETURN(std::vector<Request> requests,
//                            MakeRequests(options.prompts, options, folder));
//   ModelEngineOptions engine = EngineOptionsFor(options, requests, config.max_seq_len);
//
// Thread safety: pure functions.

#ifndef EXAMPLES_DECODE_REQUESTS_H_
#define EXAMPLES_DECODE_REQUESTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/decode/options.h"
#include "examples/decode/prompt.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/request.h"
#include "reprise/models/model_folder.h"

namespace reprise {

// One request per prompt. Texts are encoded with the template of the tokenizer (BOS, for most)
// unless options.adds_special_tokens is false. The config's end tokens end a sequence unless
// --ignore_eos;
// --stop_tokens and --stop always do. For models with an encoder the prompt is its input, and the
// decoder begins with the config's first token.
// The folder must outlive the requests. Errors: InvalidArgument, naming the prompt by number: a
// text that cannot be encoded, or for which the folder has no tokenizer; stop texts without a
// tokenizer, by `stop_name`; stop tokens beyond the vocabulary. The engine refuses ids beyond the
// vocabulary.
absl::StatusOr<std::vector<Request>> MakeRequests(absl::Span<const Prompt> prompts,
                                                  const DecodeOptions& options,
                                                  const ModelFolder& folder,
                                                  const char* stop_name = "--stop");

// Request::predicted_tokens of a text, encoded without what the tokenizer's template puts before
// it, or of token ids. Errors: InvalidArgument, as above.
absl::StatusOr<std::vector<int32_t>> PredictedTokens(const Prompt& predicted,
                                                     const ModelFolder& folder);

// The most sequences that run at the same time; others wait until one ends.
inline constexpr int kMaxDecodeRows = 64;

// One row per request, up to kMaxDecodeRows; sequences as long as the requests can become, up to
// the model's `max_position`; whole prompts, up to 512 tokens in a step. With --draft, drafts for
// all rows; the caller sets a draft model. With --dump_logits, one step in flight. With
// --perplexity, one row, and logits of whole chunks. REQUIRES: requests are not empty, max_position
// >= 1.
ModelEngineOptions EngineOptionsFor(const DecodeOptions& options,
                                    absl::Span<const Request> requests, int max_position);

// Of an engine whose requests are not known: with --max_num_seqs rows, or kServingRows, for
// sequences of --max_seq_len tokens, or as the model has positions, up to kServingTokens. Penalties
// and log-probabilities are provided for.
inline constexpr int kServingTokens = 8192;
ModelEngineOptions ServingEngineOptions(const DecodeOptions& options, int max_position);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_REQUESTS_H_
