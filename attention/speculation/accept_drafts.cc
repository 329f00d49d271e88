#include "reprise/attention/speculation/accept_drafts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

std::string DescribeRow(const AcceptDraftsArgs& args, int row) {
  const int query_len = args.query_start_loc[row + 1] - args.query_start_loc[row];
  std::string text =
      absl::StrCat("table row ", args.table_row[row], " of ", args.table.num_tables, ", seq_len ",
                   args.seq_lens[row], ", query_len ", query_len, ", num_accepted ",
                   args.num_accepted[row], ", max_accepted ", args.max_accepted);
  if (static_cast<RowFault>(args.row_faults[row]) == RowFault::kPath) {
    absl::StrAppend(&text, ", accepted_nodes");
    for (int j = 0; j < args.num_accepted[row]; ++j) {
      absl::StrAppend(&text, " ", AcceptedNode(args, row, j));
    }
  }
  return absl::StrCat(text, ", next_token ", args.next_token[row]);
}

}  // namespace

absl::Status CheckAcceptDrafts(const AcceptDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable(args.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_accepted", args.max_accepted, 1, kMaxTreeNodes));
  if (args.tail_mask != nullptr &&
      (args.accepted_nodes == nullptr || args.move_from == nullptr || args.move_to == nullptr)) {
    return absl::InvalidArgumentError(
        "accepted_nodes, move_from, move_to: expected arrays with tail_mask, got none");
  }
  if ((args.move_from == nullptr) != (args.move_to == nullptr)) {
    return absl::InvalidArgumentError("move_from, move_to: expected both or none, got one");
  }
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"query_start_loc", args.query_start_loc},
                                      {"seq_lens", args.seq_lens},
                                      {"table_row", args.table_row},
                                      {"num_accepted", args.num_accepted},
                                      {"next_token", args.next_token},
                                      {"new_tokens", args.new_tokens},
                                      {"num_new_tokens", args.num_new_tokens},
                                      {"next_position", args.next_position}}));
  if (args.num_tokens > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("token_ids", args.token_ids));
  }
  if (args.tail_mask == nullptr) return absl::OkStatus();
  return CheckRowStride("accepted_stride", args.accepted_stride, args.max_accepted, args.num_rows);
}

void AcceptDraftsOnHost(const AcceptDraftsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) WriteAcceptedRow(SerialLanes(), args, row);
}

absl::Status AcceptDrafts(const AcceptDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAcceptDrafts(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.row_faults, args.num_rows));
  AcceptDraftsOnHost(args);
  return FirstFault(args.row_faults, args.num_rows,
                    [&](int row) { return DescribeRow(args, row); });
}

}  // namespace reprise
