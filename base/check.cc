#include "reprise/base/check.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace reprise {
namespace {

template <typename... Expected>
absl::Status Refused(std::string_view name, const Expected&... expected_and_got) {
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(name.data(), name.size()),
                                                 ": expected ", expected_and_got...));
}

}  // namespace

absl::Status CheckAtLeast(std::string_view name, int64_t got, int64_t least) {
  return got >= least ? absl::OkStatus() : Refused(name, "at least ", least, ", got ", got);
}

absl::Status CheckAtMost(std::string_view name, int64_t got, int64_t most) {
  return got <= most ? absl::OkStatus() : Refused(name, "at most ", most, ", got ", got);
}

absl::Status CheckBetween(std::string_view name, int64_t got, int64_t least, int64_t most) {
  if (got >= least && got <= most) return absl::OkStatus();
  return Refused(name, least, " to ", most, ", got ", got);
}

absl::Status CheckEqual(std::string_view name, int64_t got, int64_t expected) {
  return got == expected ? absl::OkStatus() : Refused(name, expected, ", got ", got);
}

absl::Status CheckPositive(std::string_view name, float got) {
  if (std::isfinite(got) && got > 0) return absl::OkStatus();
  return Refused(name, "a positive, finite number, got ", got);
}

absl::Status CheckGiven(std::string_view name, const void* array) {
  return array != nullptr ? absl::OkStatus() : Refused(name, "an array, got none");
}

}  // namespace reprise
