#include "base/torch_status.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/match.h"

namespace reprise {
namespace {

absl::Status FromTorchError(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  // The CPU allocator throws a plain c10::Error when memory runs out; only its text identifies it.
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
  try {
    return body();
  } catch (const c10::Error& error) {
    return FromTorchError(error);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("host memory ran out");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace reprise
