#include "runner/speculation/keep_hidden.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "attention/metadata/builder_sizes.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace reprise {

absl::Status CheckKeepHidden(const KeepHiddenArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_places", args.num_places, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", args.num_slots, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("row_bytes", args.row_bytes, 2));
  if (args.row_bytes % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_bytes must be a multiple of 2: got ", args.row_bytes));
  }
  if (args.num_rows == 0) return absl::OkStatus();
  return CheckGiven({{"hidden", args.hidden},
                     {"slot_hidden", args.slot_hidden},
                     {"sample_slot", args.sample_slot}});
}

void KeepHiddenOnHost(const KeepHiddenArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) {
    const KeptHidden kept = KeptHiddenOf(args, r);
    if (kept.from != nullptr) std::memcpy(kept.to, kept.from, args.row_bytes);
  }
}

}  // namespace reprise
