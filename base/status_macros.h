// Early return for a failed absl::Status.
//
//   absl::Status Load(const std::string& path) {
//     REPRISE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
//     REPRISE_RETURN_IF_ERROR(CheckHeader(file));
//     return absl::OkStatus();
//   }
//
// Usable in functions that return absl::Status or absl::StatusOr<T>.

#ifndef REPRISE_BASE_STATUS_MACROS_H_
#define REPRISE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates `expression`, an absl::Status, once. If it is not OK, returns it from the enclosing
// function.
#define REPRISE_RETURN_IF_ERROR(expression)                                   \
  do {                                                                        \
    if (absl::Status reprise_status_ = (expression); !reprise_status_.ok()) { \
      return reprise_status_;                                                 \
    }                                                                         \
  } while (false)

// Evaluates `expression`, an absl::StatusOr<T>, once. If it failed, returns its status from the
// enclosing function. Otherwise assigns the value to `lhs`, which may declare a variable. Expands
// to several statements, so use braces after an `if`.
#define REPRISE_ASSIGN_OR_RETURN(lhs, ...) \
  REPRISE_ASSIGN_OR_RETURN_IMPL_(REPRISE_CONCAT_(reprise_statusor_, __LINE__), lhs, (__VA_ARGS__))

#define REPRISE_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = expression;                                     \
  if (!statusor.ok()) return std::move(statusor).status();        \
  lhs = *std::move(statusor)

#define REPRISE_CONCAT_(a, b) REPRISE_CONCAT_INNER_(a, b)
#define REPRISE_CONCAT_INNER_(a, b) a##b

#endif  // REPRISE_BASE_STATUS_MACROS_H_
