#include "reprise/cache/group_retention.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status CheckGroups(absl::Span<const KvGroupSpec> groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const KvGroupSpec& group = groups[i];
    switch (group.retention) {
      case KvRetention::kSlidingWindow:
      case KvRetention::kChunkedLocal:
        if (group.span < 1) {
          return absl::InvalidArgumentError(absl::StrCat(
              "span of group ", i, " must be positive: expected at least 1, got ", group.span));
        }
        break;
      case KvRetention::kFull:
      case KvRetention::kCross:
        if (group.span != 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("span of group ", i,
                           " must be 0 without a window or chunk: expected 0, got ", group.span));
        }
        break;
      default:
        return absl::InvalidArgumentError(absl::StrCat("retention of group ", i,
                                                       " is unknown: expected 0 to 3, got ",
                                                       static_cast<int>(group.retention)));
    }
  }
  if (absl::c_none_of(groups, HoldsOwnTokens)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "groups must hold the tokens of a sequence: expected a group that is not kCross, got ",
        groups.size(), " cross groups"));
  }
  return absl::OkStatus();
}

}  // namespace reprise
