// Keeps the logits from which the tokens of several requests were chosen, as float32.
//
//   LogitsRecorder recorder(requests.size());
//   ... Generate(*engine, requests, [&](int request, const TokenEvent& event) {
//     return recorder.Record(request, engine->runner().logits(), event.row);
//   });
//   REPRISE_RETURN_IF_ERROR(recorder.Write("logits.safetensors"));
//
// The engine must have one step in flight (ModelRunnerOptions::max_steps_in_flight): the logits of
// a step are overwritten by the next launch.
//
// Thread safety: none. Cost: a row is copied to the host, and waited for; 4 bytes an entry are
// kept.

#ifndef EXAMPLES_LLAMA_LOGITS_RECORDER_H_
#define EXAMPLES_LLAMA_LOGITS_RECORDER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

class LogitsRecorder {
 public:
  explicit LogitsRecorder(int num_requests);

  // Appends logits[row] to those of `request`. `logits` [>= row + 1, vocab_size], of any floating
  // type and device. Errors: InvalidArgument if vocab_size is not that of earlier calls.
  absl::Status Record(int request, const at::Tensor& logits, int row);

  // What was recorded for a request, [num_rows(request), vocab_size] row by row.
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

#endif  // EXAMPLES_LLAMA_LOGITS_RECORDER_H_
