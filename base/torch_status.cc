#include "reprise/base/torch_status.h"

#include <c10/util/Exception.h>

#include <string>

#include "absl/strings/match.h"
#include "reprise/base/catch_all.h"

namespace reprise {
namespace {

absl::Status FromTorchError(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  // If memory runs out, the CPU allocator throws a plain c10::Error that only its text identifies.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      absl::StrContains(message, "can't allocate memory") ||
      absl::StrContains(message, "not enough memory")) {
    return absl::ResourceExhaustedError(message);
  }
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) {
    return absl::UnimplementedError(message);
  }
  return absl::InternalError(message);
}

}  // namespace

absl::Status CatchTorch(absl::FunctionRef<absl::Status()> body) {
  return CatchAll([&]() -> absl::Status {
    try {
      return body();
    } catch (const c10::Error& error) {
      return FromTorchError(error);
    }
  });
}

}  // namespace reprise
