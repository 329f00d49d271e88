// Converts a Status to an exception, for operators that Python calls. The reverse of
// base/torch_status.h.
//
//   code               exception            in Python
//   InvalidArgument    c10::ValueError      ValueError
//   Unimplemented      c10::NotImplementedError  NotImplementedError
//   ResourceExhausted  c10::OutOfMemoryError     torch.OutOfMemoryError
//   anything else      c10::Error           RuntimeError
//
// The text is the message of the status, unchanged.

#ifndef REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_
#define REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_

#include "absl/status/status.h"

namespace reprise {

// Throws the exception for `status` unless it is OK.
void ThrowIfError(const absl::Status& status);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_THROW_STATUS_H_
