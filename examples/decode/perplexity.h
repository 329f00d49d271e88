// The perplexity of a text: how well a model predicts its tokens, without generating any.
//
//   REPRISE_ASSIGN_OR_RETURN(std::vector<Request> requests,
//                            MakeScoringRequests("text.txt", folder, max_position));
//   PerplexityMeter meter;
//   Generate(*engine, requests, [&](int, const TokenEvent& event) { return meter.Add(event); });
//   std::cout << Summary(meter.result());
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_PERPLEXITY_H_
#define EXAMPLES_DECODE_PERPLEXITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/engine/request.h"
#include "reprise/models/model_folder.h"

namespace reprise {

// Requests that score the text of a file and generate nothing: its tokens, with the template of the
// tokenizer, in windows of at most `max_position` tokens. A window begins with the last token of
// the one before it, so that each token but the first is scored once.
// Errors: NotFound if the file cannot be read; InvalidArgument, naming it: no UTF-8, fewer than two
// tokens, a folder without a tokenizer, or a model with an encoder. REQUIRES: max_position >= 2.
absl::StatusOr<std::vector<Request>> MakeScoringRequests(const std::string& path,
                                                         const ModelFolder& folder,
                                                         int max_position);

struct PerplexityResult {
  int64_t num_tokens = 0;     // scored
  double log_likelihood = 0;  // the sum of their natural log-probabilities

  double perplexity() const;  // exp(-log_likelihood / num_tokens)
};

class PerplexityMeter {
 public:
  // Takes the event that ends a window. Errors: Internal if it brings no log-probabilities.
  absl::Status Add(const TokenEvent& event);

  const PerplexityResult& result() const { return result_; }

 private:
  PerplexityResult result_;
};

// One line without its end: {"perplexity":12.5,"tokens":1999,"log_likelihood":-5049.1}.
std::string ToJson(const PerplexityResult& result);

// "perplexity 12.5000 over 1999 tokens".
std::string Summary(const PerplexityResult& result);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_PERPLEXITY_H_
