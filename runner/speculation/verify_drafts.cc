#include "reprise/runner/speculation/verify_drafts.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

absl::Status CheckVerifyDrafts(const VerifyDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.arrays.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_drafts", args.max_drafts, 0, kMaxDrafts));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("output_stride", args.output_stride, 0));
  if (args.output_stride > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.output", args.arrays.output));
  }
  if (args.place_tokens.tokens != nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.slot_mapping", args.arrays.slot_mapping));
  }
  return CheckGiven({{"chosen", args.chosen},
                     {"tokens", args.tokens},
                     {"num_new", args.num_new},
                     {"new_tokens", args.new_tokens},
                     {"slots.seq_len", args.slots.seq_len},
                     {"slots.last_token", args.slots.last_token},
                     {"slots.sample_index", args.slots.sample_index},
                     {"arrays.token_ids", args.arrays.token_ids},
                     {"arrays.query_start_loc", args.arrays.query_start_loc},
                     {"arrays.context_lens", args.arrays.context_lens},
                     {"arrays.sample_slot", args.arrays.sample_slot},
                     {"arrays.first_verified", args.arrays.first_verified}});
}

void VerifyDraftsOnHost(const VerifyDraftsArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) {
    if (!HasOutput(args)) {
      WriteNoOutput(args, r);
      continue;
    }
    const VerifiedRow row = VerifiedRowOf(args, r);
    if (row.slot < 0) {
      WriteNotSampled(args, r);
      continue;
    }
    int num_accepted = 0;
    while (num_accepted < row.num_drafts &&
           IsAccepted(args, row, num_accepted, ChosenAt(args, r, row, num_accepted))) {
      ++num_accepted;
    }
    const bool has_more = ChosenAt(args, r, row, num_accepted) >= 0;
    WriteVerifiedRow(SerialLanes(), args, r, row, num_accepted + (has_more ? 1 : 0));
  }
}

}  // namespace reprise
