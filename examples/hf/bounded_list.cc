#include "reprise/hf/bounded_list.h"

#include "absl/strings/str_cat.h"

namespace reprise {

std::string BoundedList(absl::Span<const std::string_view> names, size_t max_length) {
  constexpr size_t kRestLength = std::string_view(" and 99999 more").size();
  constexpr std::string_view kCut = "...";
  size_t whole_length = 0;
  for (const std::string_view name : names)
    whole_length += (whole_length > 0 ? 2 : 0) + name.size();
  const bool is_whole = whole_length <= max_length;
  const size_t limit = is_whole || names.size() == 1 ? max_length : max_length - kRestLength;
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    if (i > 0 && list.size() + 2 + name.size() > limit) {
      return absl::StrCat(list, " and ", names.size() - i, " more");
    }
    if (i > 0) list += ", ";
    if (i == 0 && name.size() > limit) {
      list.append(name.substr(0, limit - kCut.size())).append(kCut);
    } else {
      list += name;
    }
  }
  return list;
}

}  // namespace reprise
