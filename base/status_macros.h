// Early return on a failed absl::Status: the two macros of the project's error style.
//
//   absl::Status Load(const std::string& path) {
//     REPRISE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
//     REPRISE_RETURN_IF_ERROR(CheckHeader(file));
//     return absl::OkStatus();
//   }
//
// Both may be used in functions that return absl::Status or any absl::StatusOr<T>.

#ifndef REPRISE_BASE_STATUS_MACROS_H_
#define REPRISE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status, once; returns it from the enclosing function unless OK.
#define REPRISE_RETURN_IF_ERROR(expression)                                   \
  do {                                                                        \
    if (absl::Status reprise_status_ = (expression); !reprise_status_.ok()) { \
      return reprise_status_;                                                 \
    }                                                                         \
  } while (false)

// Evaluates `expression`, an absl::StatusOr<T>, once; returns its status on failure, else assigns
// the value to `lhs`, which may declare a variable. Expands to several statements: brace it under
// an `if`.
#define REPRISE_ASSIGN_OR_RETURN(lhs, ...) \
  REPRISE_ASSIGN_OR_RETURN_IMPL_(REPRISE_CONCAT_(reprise_statusor_, __LINE__), lhs, (__VA_ARGS__))

#define REPRISE_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = expression;                                     \
  if (!statusor.ok()) return std::move(statusor).status();        \
  lhs = *std::move(statusor)

#define REPRISE_CONCAT_(a, b) REPRISE_CONCAT_INNER_(a, b)
#define REPRISE_CONCAT_INNER_(a, b) a##b

#endif  // REPRISE_BASE_STATUS_MACROS_H_
