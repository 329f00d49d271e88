// Collects what the requests of a run become, and shows the texts as they are made.
//
//   Transcripts transcripts(requests, tokenizer, &printer);
//   Generate(*engine, requests, [&](int request, const TokenEvent& event) {
//     transcripts.Add(request, event);
//     return absl::OkStatus();
//   });
//   for (const Generation& generation : transcripts.generations()) ...
//
// Thread safety: none. Tokenizer and printer must outlive it.

#ifndef EXAMPLES_LLAMA_TRANSCRIPTS_H_
#define EXAMPLES_LLAMA_TRANSCRIPTS_H_

#include <vector>

#include "absl/types/span.h"
#include "examples/llama/generation.h"
#include "examples/llama/text_printer.h"
#include "examples/tokenizer/streaming_decoder.h"
#include "examples/tokenizer/tokenizer.h"
#include "runner/request.h"

namespace reprise {

class Transcripts {
 public:
  // Without a tokenizer (null), the printer shows token ids. Without a printer (null), nothing is
  // shown.
  Transcripts(absl::Span<const Request> requests, const Tokenizer* tokenizer, TextPrinter* printer);

  // The next token of a request. REQUIRES: it is not finished.
  void Add(int request, const TokenEvent& event);

  // One a request. Texts are whole once their request is finished.
  absl::Span<const Generation> generations() const { return generations_; }

 private:
  std::vector<Generation> generations_;
  std::vector<StreamingDecoder> decoders_;  // one a request; empty without a tokenizer
  TextPrinter* printer_;
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_TRANSCRIPTS_H_
