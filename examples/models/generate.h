// Runs a list of requests through an engine, until all have finished, and optionally keeps the
// logits.
//
//   LogitsRecorder recorder(requests.size());
//   REPRISE_RETURN_IF_ERROR(Generate(*engine, requests, [&](int request, const TokenEvent& event) {
//     tokens[request].push_back(*event.token);
//     return recorder.Record(request, *LogitsOf(*engine, event));
//   }));
//   REPRISE_RETURN_IF_ERROR(recorder.Write("logits.safetensors"));
//
// All requests are added before the first step, so that they run as one batch, up to the engine's
// number of rows. To record logits the engine must keep them (LogitsOptions::step_logits) or
// have one step in flight.
//
// Thread safety: none.

#ifndef REPRISE_MODELS_GENERATE_H_
#define REPRISE_MODELS_GENERATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/request.h"

namespace reprise {

// Called for every token, in the order in which the engine reports them, right after the step that
// reported it, while *LogitsOf(engine, event) is valid. Every event has a token, but for requests
// that generate none (Request::max_new_tokens 0): theirs is one without. An error ends the run.
using TokenListener = absl::FunctionRef<absl::Status(int request, const TokenEvent& event)>;

// REQUIRES: the engine has no work. Errors: those of Engine::Add(), naming the request by number if
// there are several, before any step has run; those of Engine::Step() and of the listener; why a
// sequence failed.
absl::Status Generate(Engine& engine, absl::Span<const Request> requests, TokenListener on_token);

// Keeps the logits from which the tokens of several requests were chosen, as float32. A row is
// copied to the host, and waited for; 4 bytes an entry are kept.
class LogitsRecorder {
 public:
  explicit LogitsRecorder(int num_requests);

  // Appends logits [vocab_size], of any floating type and device, to those of `request`. Errors:
  // InvalidArgument if they are undefined or vocab_size is not that of earlier calls.
  absl::Status Record(int request, const at::Tensor& logits);

  // The recorded logits of a request, [num_rows(request), vocab_size] row by row.
  absl::Span<const float> rows(int request) const { return rows_[request]; }
  int64_t num_rows(int request) const;

  // Writes a safetensors file of tensors logits_<request> [num_rows, vocab_size]. Errors: those of
  // WriteSafetensors().
  absl::Status Write(const std::string& path) const;

 private:
  int64_t vocab_size_ = 0;  // 0: nothing recorded yet
  std::vector<std::vector<float>> rows_;
};

}  // namespace reprise

#endif  // REPRISE_MODELS_GENERATE_H_
