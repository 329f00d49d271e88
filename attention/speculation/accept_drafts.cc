#include "reprise/attention/speculation/accept_drafts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/attention/speculation/tree_check.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/kv_group.h"

namespace reprise {
namespace {

std::string DescribeRow(const AcceptDraftsArgs& args, int row) {
  std::string text =
      absl::StrCat("slot ", args.slot_of_row[row], " of ", args.slots.num_slots, ", tokens ",
                   args.query_start_loc[row], " to ", args.query_start_loc[row + 1], " of ",
                   args.num_tokens, ", context_len ", args.context_lens[row]);
  if (args.first_verified == nullptr) return text;
  return absl::StrCat(text, ", first_verified ", args.first_verified[row], " of ", args.num_logits);
}

absl::Status CheckSizes(const AcceptDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_drafts", args.max_drafts, 0, kMaxTreeNodes - 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_groups", args.num_groups, 1, kMaxKvGroups));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("num_logits", args.num_logits,
                   args.first_verified != nullptr ? args.num_rows : args.num_tokens));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("output_stride", args.output_stride, 0));
  if (args.num_groups > 1) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("group_stride", args.group_stride, args.num_tokens));
  }
  if (args.place_tokens.tokens != nullptr) {
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("place_tokens.group", args.place_tokens.group, 0, args.num_groups - 1));
  }
  if (args.parents.has_trees()) {
    REPRISE_RETURN_IF_ERROR(CheckParentStride(args.parents, args.max_drafts + 1, args.num_rows));
  }
  return CheckRowStride("new_tokens_stride", args.new_tokens_stride, args.max_drafts + 1,
                        args.num_rows);
}

}  // namespace

absl::Status CheckAcceptDrafts(const AcceptDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckSizes(args));
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.output_stride > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("output", args.output));
  if (args.parents.has_trees() || args.place_tokens.tokens != nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("slot_mapping", args.slot_mapping));
  }
  if (args.parents.has_trees() && args.max_drafts > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"move_from", args.move_from}, {"move_to", args.move_to}}));
  }
  return CheckGiven({{"query_start_loc", args.query_start_loc},
                     {"context_lens", args.context_lens},
                     {"token_ids", args.token_ids},
                     {"chosen", args.chosen},
                     {"slot_of_row", args.slot_of_row},
                     {"tokens", args.tokens},
                     {"num_new", args.num_new},
                     {"new_tokens", args.new_tokens}});
}

void AcceptDraftsOnHost(const AcceptDraftsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) AcceptRow(SerialLanes(), args, row);
}

absl::Status AcceptDrafts(const AcceptDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAcceptDrafts(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.row_faults, args.num_rows));
  AcceptDraftsOnHost(args);
  return FirstFault(args.row_faults, args.num_rows,
                    [&](int row) { return DescribeRow(args, row); });
}

}  // namespace reprise
