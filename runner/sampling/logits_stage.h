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
// A stage enqueues work for all rows of a step. It runs only in steps in which a row that samples
// requests it (LogitsRequest::stages); other steps have no cost. `logits` also contains rows that
// did not request the stage, which must not change. sample_slot, on the device, holds the slot of
// each row.
//
// LogitsStages (runner/sampling/logits_stages.h) contains the built-in stages and calls the user's
// stages.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_STAGE_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_STAGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

// The arguments of a stage. The tensor and the pointers refer to device memory and are valid while
// the step runs. Their addresses may differ between steps.
struct LogitsStep {
  // [num_rows, vocab_size], padded rows included; may be changed in place before the choice.
  at::Tensor logits;
  SamplingSlots slots = {};  // slots of the choice; afterwards last_token holds the new tokens
  const int32_t* sample_slot = nullptr;  // [num_rows] -1: the row is padded, or does not sample
};

class LogitsStage {
 public:
  virtual ~LogitsStage() = default;

  // Called on the thread that launches steps, with the step's stream current. They enqueue work and
  // must not wait for the device or read its memory. An error fails the step.
  virtual absl::Status BeforeSample(const LogitsStep& step) = 0;
  virtual absl::Status AfterSample(const LogitsStep&) { return absl::OkStatus(); }
};

// Which steps' logits a caller can read (ModelRunner::logits()).
enum class StepLogits : int8_t {
  // The logits of the awaited step, if max_steps_in_flight is 1. Otherwise no logits.
  kIfSynchronous,
  // The logits of every step, until the second Launch() after the step's Await(). Takes a copy of
  // the logits, [max_num_seqs, vocab_size], for each step that may be in flight and one more.
  kOfEvery,
};

// Features between logits and tokens that sequences may request (docs/sampling.md), and which
// logits are kept. Each option takes memory.
struct LogitsOptions {
  // Whether requests may have repetition, presence and frequency penalties: 2 bytes per slot and
  // token of the vocabulary.
  bool penalties = false;
  // Maximum number of biases per sequence. OpenAI's interface allows 300.
  int max_biases = 0;
  // Whether requests may have masks of allowed tokens: max_num_seqs * vocab_size / 8 bytes of
  // pinned memory for each step that may be in flight, and one more.
  bool allowed_tokens = false;
  // Maximum number of most probable tokens whose log-probabilities a request may have, at most
  // kMaxTopLogProbs. 0: only the log-probability of the chosen token. -1: no log-probabilities.
  // Together with penalties, biases, masks or stages, takes a copy of the logits [max_num_seqs,
  // vocab_size].
  int max_log_probs = -1;
  // The caller's own stages, at most 30; must outlive the runner.
  std::vector<LogitsStage*> stages = {};
  StepLogits step_logits = StepLogits::kIfSynchronous;
  // Maximum number of tokens per step whose logits are computed (RowLogits::kAll), without the last
  // token of each row: 0 to max_num_tokens. Takes [max_earlier_logits, vocab_size] of the logits'
  // dtype, and with StepLogits::kOfEvery the same again for each step that may be in flight and one
  // more. Drafts raise it to at least max_num_seqs * max_drafts.
  int max_earlier_logits = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_STAGE_H_
