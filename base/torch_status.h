// Converts LibTorch's exceptions to Status.
//
// No exception leaves a public function of this project. A function that calls LibTorch wraps its
// body:
//
//   absl::Status Fill(at::Tensor& t) {
//     return CatchTorch([&]() -> absl::Status {
//       t.fill_(0);
//       return absl::OkStatus();
//     });
//   }
//   absl::StatusOr<at::Tensor> Zeros(int64_t n) {
//     return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> { return at::zeros({n}); });
//   }
//
// Both functions return the result of the body. An exception is converted to
//   ResourceExhausted  if host or device memory ran out
//   Unimplemented      for c10::NotImplementedError: LibTorch has no kernel for the dtype or device
//   Internal           otherwise
// The message is the exception's first message, without the backtrace.
//
// Thread safety: thread-safe. Cost without an exception: one indirect call.

#ifndef REPRISE_BASE_TORCH_STATUS_H_
#define REPRISE_BASE_TORCH_STATUS_H_

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

absl::Status CatchTorch(absl::FunctionRef<absl::Status()> body);

// Like CatchTorch(), for a body that returns absl::StatusOr<T>.
template <typename Body>
auto CatchTorchOr(Body&& body) -> decltype(body()) {
  std::optional<decltype(body())> result;
  absl::Status status = CatchTorch([&] {
    result.emplace(std::forward<Body>(body)());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return *std::move(result);
}

}  // namespace reprise

#endif  // REPRISE_BASE_TORCH_STATUS_H_
