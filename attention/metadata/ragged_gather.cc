#include "reprise/attention/metadata/ragged_gather.h"

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

FaultyRows Gather(const RaggedGatherArgs& args) {
  FaultyRows faulty;
  int token = 0;
  bool is_full = false;
  for (int r = 0; r < args.num_rows; ++r) {
    RaggedRow row = RaggedRowOf(args, r);
    is_full = is_full || row.len > args.num_tokens - token;
    if (is_full && row.len > 0) row = {.len = 0, .fault = RowFault::kNoRoom};
    WriteRaggedRow(args, r, token, row.fault);
    for (int i = 0; i < row.len; ++i) WriteRaggedToken(args, token++, i);
    faulty.Add(r, row.fault);
  }
  WriteRaggedStart(args, args.num_rows, token);
  for (; token < args.num_tokens; ++token) WriteRaggedToken(args, token, 0);
  if (args.num_faults) *args.num_faults = faulty.count;
  return faulty;
}

}  // namespace

RaggedBatch RaggedGatherBatch(const RaggedGatherArgs& args) {
  return {.query_start_loc = args.query_start_loc,
          .key_start_loc = args.key_start_loc,
          .causal = args.kind != RaggedKind::kEncoder,
          .num_rows = args.num_rows,
          .num_tokens = args.num_tokens,
          .num_keys = args.num_tokens,
          .max_query_len = args.max_len,
          .max_seq_len = args.kind == RaggedKind::kProfileZeros ? 0 : args.max_len};
}

absl::Status CheckRaggedGather(const RaggedGatherArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_len", args.max_len, 0));
  if (args.num_rows > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("lens", args.lens));
  if (args.num_tokens > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("positions", args.positions));
  return CheckGiven(
      {{"query_start_loc", args.query_start_loc}, {"key_start_loc", args.key_start_loc}});
}

void RaggedGatherOnHost(const RaggedGatherArgs& args) { Gather(args); }

absl::StatusOr<RaggedBatch> BuildRaggedGather(const RaggedGatherArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckRaggedGather(args));
  REPRISE_RETURN_IF_ERROR(Gather(args).ToStatus([&](int r) {
    return absl::StrCat("len ", args.lens[r], ", max_len ", args.max_len, ", num_tokens ",
                        args.num_tokens);
  }));
  return RaggedGatherBatch(args);
}

absl::Status FillProfileLens(int num_tokens, absl::Span<int32_t> lens) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", num_tokens, 0));
  if (lens.empty()) {
    if (num_tokens == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("lens: expected at least 1 sequence for ", num_tokens, " tokens, got 0"));
  }
  const int num_seqs = static_cast<int>(lens.size());
  for (int s = 0; s < num_seqs; ++s) {
    lens[s] = num_tokens / num_seqs + (s < num_tokens % num_seqs ? 1 : 0);
  }
  return absl::OkStatus();
}

}  // namespace reprise
