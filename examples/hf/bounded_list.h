// Unstable: any version may change this header (docs/embedding.md).
//
// A list of names for a message of bounded length.
//
//   BoundedList({"q_proj", "k_proj", "v_proj", "o_proj"}, 29)   // "q_proj, k_proj and 2 more"
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_BOUNDED_LIST_H_
#define REPRISE_HF_BOUNDED_LIST_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace reprise {

// Returns the first names that fit, joined by commas, and the number of further names: at most
// `max_length` characters for up to 99999 names. If the first name alone does not fit, the list has
// its beginning. REQUIRES: max_length >= 20.
std::string BoundedList(absl::Span<const std::string_view> names, size_t max_length);

}  // namespace reprise

#endif  // REPRISE_HF_BOUNDED_LIST_H_
