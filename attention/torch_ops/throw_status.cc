#include "reprise/attention/torch_ops/throw_status.h"

#include <c10/util/Exception.h>

#include <string>

namespace reprise {

void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      C10_THROW_ERROR(ValueError, message);
    case absl::StatusCode::kUnimplemented:
      C10_THROW_ERROR(NotImplementedError, message);
    case absl::StatusCode::kResourceExhausted:
      C10_THROW_ERROR(OutOfMemoryError, message);
    default:
      C10_THROW_ERROR(Error, message);
  }
}

}  // namespace reprise
