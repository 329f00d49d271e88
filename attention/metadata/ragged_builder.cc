#include "attention/metadata/ragged_builder.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "cache/tables/slot_mapping.h"

namespace reprise {
namespace {

absl::Status CheckHolds(absl::string_view name, int64_t got, int64_t needed) {
  if (got >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected at least ", needed, ", got ", got));
}

// The total of the lengths.
absl::StatusOr<int> Total(absl::Span<const int32_t> lens) {
  int64_t total = 0;
  for (size_t r = 0; r < lens.size(); ++r) {
    if (lens[r] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("lens[", r, "]: expected at least 0, got ", lens[r]));
    }
    total += lens[r];
  }
  if (total <= INT32_MAX) return static_cast<int>(total);
  return absl::InvalidArgumentError(
      absl::StrCat("lens: expected a total of at most ", INT32_MAX, ", got ", total));
}

}  // namespace

absl::StatusOr<BuiltRaggedBatch> BuildRaggedBatch(const RaggedRequest& request,
                                                  const RaggedBuffers& buffers) {
  const int num_rows = static_cast<int>(request.lens.size());
  REPRISE_ASSIGN_OR_RETURN(const int num_tokens, Total(request.lens));
  const PaddedSize padded = request.padded.value_or(PaddedSize{num_rows, num_tokens});
  REPRISE_RETURN_IF_ERROR(CheckHolds("padded.num_rows", padded.num_rows, num_rows));
  REPRISE_RETURN_IF_ERROR(CheckHolds("padded.num_tokens", padded.num_tokens, num_tokens));
  const auto size = [](const auto& buffer) { return static_cast<int64_t>(buffer.size()); };
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("query_start_loc", size(buffers.query_start_loc), int64_t{padded.num_rows} + 1));
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("key_start_loc", size(buffers.key_start_loc), int64_t{padded.num_rows} + 1));
  REPRISE_RETURN_IF_ERROR(CheckHolds("positions", size(buffers.positions), padded.num_tokens));
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("slot_mapping", size(buffers.slot_mapping), padded.num_tokens));

  const bool has_keys = request.kind != RaggedKind::kProfileZeros;
  int token = 0;
  int longest = 0;
  for (int r = 0; r <= padded.num_rows; ++r) {
    buffers.query_start_loc[r] = token;
    buffers.key_start_loc[r] = has_keys ? token : 0;
    if (r >= num_rows) continue;
    longest = std::max(longest, request.lens[r]);
    for (int i = 0; i < request.lens[r]; ++i) buffers.positions[token++] = i;
  }
  std::fill(buffers.positions.begin() + token, buffers.positions.begin() + padded.num_tokens, 0);
  std::fill_n(buffers.slot_mapping.begin(), padded.num_tokens, kNoSlot);
  return BuiltRaggedBatch{.batch = {.query_start_loc = buffers.query_start_loc.data(),
                                    .key_start_loc = buffers.key_start_loc.data(),
                                    .causal = request.kind != RaggedKind::kEncoder,
                                    .num_rows = padded.num_rows,
                                    .num_tokens = padded.num_tokens,
                                    .num_keys = padded.num_tokens,
                                    .max_query_len = longest,
                                    .max_seq_len = has_keys ? longest : 0},
                          .positions = buffers.positions.subspan(0, padded.num_tokens),
                          .slot_mapping = buffers.slot_mapping.subspan(0, padded.num_tokens),
                          .num_live_tokens = token};
}

absl::Status FillProfileLens(int num_tokens, absl::Span<int32_t> lens) {
  REPRISE_RETURN_IF_ERROR(CheckHolds("num_tokens", num_tokens, 0));
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
