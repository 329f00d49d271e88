// Work on a step's logits between the forward pass and the choice of tokens, and after the choice.
//
//   class Watermark : public LogitsStage {
//    public:
//     absl::Status BeforeSample(const LogitsStep& step) override {
//       // On LibTorch's current stream, which is the step's.
//       return AddWatermark(step.logits, step.sample_slot);
//     }
//   };
//
// A stage enqueues work for all rows of a step. It runs in the steps in which a row that samples
// asks for it (LogitsRequest::stages), and in no other: a step without such rows pays nothing. The
// rows that did not ask are in `logits` too, and must stay as they are: sample_slot, on the device,
// says whose each row is.
//
// LogitsStages (runner/sampling/logits_stages.h) has the built-in stages and calls the others.

#ifndef RUNNER_SAMPLING_LOGITS_STAGE_H_
#define RUNNER_SAMPLING_LOGITS_STAGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runner/sampling/sampling_params.h"

namespace reprise {

// What a stage works on. Pointers and the tensor are on the device, and valid while the step runs;
// their addresses may differ from step to step.
struct LogitsStep {
  // [num_rows, vocab_size], padded rows included; may be changed in place before the choice.
  at::Tensor logits;
  SamplingSlots slots = {};              // of the choice; last_token is the row's token after it
  const int32_t* sample_slot = nullptr;  // [num_rows] -1: the row is padded, or does not sample
};

class LogitsStage {
 public:
  virtual ~LogitsStage() = default;

  // Called on the thread that launches steps, with the step's stream current. They enqueue, and
  // must not wait for the device or read its memory. An error fails the step.
  virtual absl::Status BeforeSample(const LogitsStep& step) = 0;
  virtual absl::Status AfterSample(const LogitsStep&) { return absl::OkStatus(); }
};

// What sequences may ask for. Each takes memory, so the default is nothing.
struct LogitsOptions {
  // Repetition, presence and frequency: 2 bytes for each slot and token of the vocabulary.
  bool penalties = false;
  // The most biases of a sequence. OpenAI's interface allows 300.
  int max_biases = 0;
  // Masks of allowed tokens: max_rows * vocab_size / 8 bytes of pinned memory for each step that may
  // be in flight, and one more.
  bool allowed_tokens = false;
  // The most of the top of a row, up to kMaxTopLogProbs; 0: of the chosen token only; -1: none.
  // Together with any of the others, or with stages: a copy of the logits [max_rows, vocab_size].
  int max_log_probs = -1;
  // The user's own, at most 30, which must outlive the stages.
  std::vector<LogitsStage*> stages = {};
};

}  // namespace reprise

#endif  // RUNNER_SAMPLING_LOGITS_STAGE_H_
