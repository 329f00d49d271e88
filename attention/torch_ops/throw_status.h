// Converts a Status to an exception, the reverse of base/torch_status.h, for operators that Python
// calls.
//
//   code               exception            in Python
//   InvalidArgument    c10::ValueError      ValueError
//   Unimplemented      c10::NotImplementedError  NotImplementedError
//   ResourceExhausted  c10::OutOfMemoryError     torch.OutOfMemoryError
//   anything else      c10::Error           RuntimeError
//
// The text is the status's message, unchanged.

#ifndef REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_
#define REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_

#include "absl/status/status.h"

namespace reprise {

// Returns if `status` is OK, else throws.
void ThrowIfError(const absl::Status& status);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_
