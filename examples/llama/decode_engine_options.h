// How large an engine a run of decode needs.
//
//   EngineOptions engine = EngineOptionsFor(options, requests, config.max_seq_len);

#ifndef EXAMPLES_LLAMA_DECODE_ENGINE_OPTIONS_H_
#define EXAMPLES_LLAMA_DECODE_ENGINE_OPTIONS_H_

#include "absl/types/span.h"
#include "examples/llama/decode_options.h"
#include "runner/engine.h"
#include "runner/request.h"

namespace reprise {

// Sequences that run at a time at most; others wait until one ends.
inline constexpr int kMaxDecodeRows = 64;

// A row a request, up to kMaxDecodeRows; sequences as long as the requests can become, but no
// longer than `max_position`, which the model knows; prompts whole, as far as 512 tokens go in a
// step. With --dump_logits, one step in flight. REQUIRES: requests are not empty, max_position >=
// 1.
EngineOptions EngineOptionsFor(const DecodeOptions& options, absl::Span<const Request> requests,
                               int max_position);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DECODE_ENGINE_OPTIONS_H_
