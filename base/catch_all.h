// Converts thrown exceptions and other thrown objects to Status, without LibTorch.
//
// No exception leaves a public function of this project. A function that calls user code, such as a
// callback, wraps the call:
//
//   bool ends = false;
//   REPRISE_RETURN_IF_ERROR(CallUser("StopMatcher::Ends()", [&] { ends = matcher.Ends(token); }));
//
// A thrown object is converted to
//   ResourceExhausted  for std::bad_alloc: host memory ran out
//   Internal           for any other object. The message is the exception's message, or states that
//                      the object is not a std::exception
//
// For calls of LibTorch use CatchTorch() (base/torch_status.h), because LibTorch's exceptions have
// codes and backtraces.
//
// Thread safety: thread-safe. Cost without an exception: none.

#ifndef REPRISE_BASE_CATCH_ALL_H_
#define REPRISE_BASE_CATCH_ALL_H_

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace reprise {

// Returns the Status of the exception that is being handled. The message names the function
// `callee` that threw, unless `callee` is empty. REQUIRES: called in a catch block.
inline absl::Status StatusOfThrown(std::string_view callee = {}) {
  const std::string name(callee);
  const std::string prefix = name.empty() ? "" : absl::StrCat(name, " threw an exception: ");
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(prefix, "host memory ran out"));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(prefix, error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(name, name.empty() ? "" : " ",
                                            "threw something that is not a std::exception"));
  }
}

// Returns the result of `body`, an absl::Status or absl::StatusOr. If `body` throws, returns the
// error.
template <typename Body>
auto CatchAll(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return StatusOfThrown();
  }
}

// Calls `call`, which runs the user's function `callee`. If it throws, the error names the
// function: "StopMatcher::Ends() threw an exception: far out".
template <typename Call>
absl::Status CallUser(std::string_view callee, Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (...) {
    return StatusOfThrown(callee);
  }
}

}  // namespace reprise

#endif  // REPRISE_BASE_CATCH_ALL_H_
