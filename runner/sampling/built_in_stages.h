// The built-in stages and the per-slot state that they share. LogitsStages
// (runner/sampling/logits_stages.h) consists of these.
//
// Thread safety: not thread-safe; one owner. All work is enqueued on LibTorch's current stream,
// which must be the stream of the fences. No allocation after Create().

#ifndef REPRISE_RUNNER_SAMPLING_BUILT_IN_STAGES_H_
#define REPRISE_RUNNER_SAMPLING_BUILT_IN_STAGES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/dtype.h"
#include "reprise/base/fence.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/base/staging_ring.h"
#include "reprise/runner/sampling/log_probs_args.h"
#include "reprise/runner/sampling/log_probs_view.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/sampling/logits_stage.h"

namespace reprise {

struct LogitsStagesOptions {
  LogitsOptions logits = {};
  c10::Device device = c10::kCPU;
  DType logits_dtype = DType::kFloat32;
  int num_slots = 0;
  int max_rows = 0;
  int max_earlier_logits = 0;  // rows of logits after the logits of the rows (RowLogits::kAll)
  int vocab_size = 0;
  int max_seq_len = 0;
  int max_steps_in_flight = 1;
};

// Allocates mapped memory, and makes fences of the steps' stream. Used during Create() only.
struct LogitsStagesMemory {
  absl::FunctionRef<absl::StatusOr<MappedBuffer>(int64_t bytes)> allocate_mapped;
  absl::FunctionRef<absl::StatusOr<std::unique_ptr<Fence>>()> make_fence;
};

// Logits of known tokens on the device, with the known token and the slot of each row of logits.
// Each row reports the log-probability of its token if the slot requests it.
struct ScoredLogits {
  at::Tensor logits;               // [num_logits, vocab_size]
  const int32_t* slot = nullptr;   // [num_logits] -1: the row has no known token
  const int32_t* token = nullptr;  // [num_logits]
};

// LogitsSlots in device memory, and the ring through which parameters reach the device.
class LogitsSlotStates {
 public:
  static absl::StatusOr<std::unique_ptr<LogitsSlotStates>> Create(
      const LogitsStagesOptions& options, const LogitsStagesMemory& memory);

  // Sets the slots of the requests. Uses one launch per ring slot that the requests fill. REQUIRES:
  // the lists of each request are within the limits of the options.
  absl::Status Join(absl::Span<const LogitsRequest> requests);

  const LogitsSlots& slots() const { return slots_; }
  int64_t device_bytes() const;

 private:
  explicit LogitsSlotStates(const LogitsStagesOptions& options) : options_(options) {}
  absl::Status Allocate(const LogitsStagesMemory& memory);

  LogitsStagesOptions options_;
  LogitsSlots slots_;
  at::Tensor params_, biases_, counts_;  // memory of slots_
  std::optional<MappedBuffer> memory_;
  std::optional<StagingRing> ring_;
};

// Applies penalties, biases and masks. After the choice, counts the chosen tokens of rows with
// penalties.
class ProcessorsStage : public LogitsStage {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessorsStage>> Create(const LogitsStagesOptions& options,
                                                                 const LogitsSlots& slots,
                                                                 const LogitsStagesMemory& memory);

  // Sets the masks of the next step. REQUIRES: `masks` is empty, or the options enable masks.
  void SetMasks(absl::Span<const AllowedTokens> masks);

  absl::Status BeforeSample(const LogitsStep& step) override;
  absl::Status AfterSample(const LogitsStep& step) override;

 private:
  ProcessorsStage(const LogitsStagesOptions& options, const LogitsSlots& slots)
      : options_(options), slots_(slots) {}

  LogitsStagesOptions options_;
  LogitsSlots slots_;
  std::optional<MappedBuffer> memory_;
  std::optional<StagingRing> ring_;
  std::optional<StagingSlot> masks_;  // the step's masks, until their kernel is launched
  int num_masks_ = 0;
};

// Computes log-probabilities of raw logits.
class LogProbsStage : public LogitsStage {
 public:
  static absl::StatusOr<std::unique_ptr<LogProbsStage>> Create(const LogitsStagesOptions& options,
                                                               const LogitsSlots& slots,
                                                               const LogitsStagesMemory& memory);

  // Settings of the next step: whether other stages may change its logits, and the output that its
  // log-probabilities are written to.
  void set_keeps_raw(bool keeps_raw) { keeps_raw_ = keeps_raw; }
  void set_output(int output) { output_ = output; }

  absl::Status BeforeSample(const LogitsStep& step) override;
  absl::Status AfterSample(const LogitsStep& step) override;
  // Writes only the entries of rows of logits that have a known token and whose slot requests its
  // log-probability.
  absl::Status Score(const ScoredLogits& scored);

  RowLogProbsView On(int output) const;
  int64_t device_bytes() const { return raw_.defined() ? static_cast<int64_t>(raw_.nbytes()) : 0; }

 private:
  LogProbsStage(const LogitsStagesOptions& options, const LogitsSlots& slots)
      : options_(options), slots_(slots) {}
  LogProbs At(std::byte* base, int output) const;

  LogitsStagesOptions options_;
  LogitsSlots slots_;
  std::optional<MappedBuffer> memory_;
  int64_t output_bytes_ = 0;
  at::Tensor raw_;  // [max_rows, vocab_size]; undefined if the options enable no other stage
  bool keeps_raw_ = false;
  int output_ = 0;
};

// Whether the options enable penalties, biases or masks, which ProcessorsStage applies.
bool HasProcessors(const LogitsOptions& options);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_BUILT_IN_STAGES_H_
