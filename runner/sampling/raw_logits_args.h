// Arguments of the copy of raw logits, shared by the host and device forms
// (runner/sampling/raw_logits.h).

#ifndef REPRISE_RUNNER_SAMPLING_RAW_LOGITS_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_RAW_LOGITS_ARGS_H_

#include <cstdint>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {

struct RawLogitsArgs {
  DType dtype = DType::kFloat32;  // logits and raw
  const void* logits = nullptr;   // [num_rows, vocab_size]
  int64_t logits_stride = 0;      // elements between rows
  void* raw = nullptr;            // [num_rows, vocab_size]; must not overlap logits
  int64_t raw_stride = 0;
  int num_rows = 0;
  int vocab_size = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  const LogitsParams* params = nullptr;  // [num_slots] only num_log_probs is read
  int num_slots = 0;
};

constexpr bool KeepsRaw(const RawLogitsArgs& args, int row) {
  const int32_t slot = args.sample_slot[row];
  return slot >= 0 && slot < args.num_slots && args.params[slot].num_log_probs >= 0;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_RAW_LOGITS_ARGS_H_
