#include "reprise/runner/speculation/keep_states.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckKeepStates(const KeepStatesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_hidden", args.num_hidden, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_slots", args.num_slots, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_kept", args.num_kept, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("row_bytes", args.row_bytes, 2));
  if (args.row_bytes % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_bytes must be a multiple of 2: got ", args.row_bytes));
  }
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(args.last_token != nullptr
                              ? CheckGiven("sample_slot", args.sample_slot)
                              : CheckGiven("query_start_loc", args.query_start_loc));
  return CheckGiven({{"hidden", args.hidden},
                     {"positions", args.positions},
                     {"table_row", args.table_row},
                     {"states", args.states},
                     {"state_positions", args.state_positions}});
}

void KeepStatesOnHost(const KeepStatesArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) {
    for (int i = 0; i < MaxStatesOfRow(args); ++i) {
      const KeptState kept = KeptStateOf(args, r, i);
      if (kept.from == nullptr) break;
      std::memcpy(kept.to, kept.from, args.row_bytes);
      *kept.position_to = kept.position;
    }
  }
}

}  // namespace reprise
