#include "reprise/attention/metadata/batch_split.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

enum class RowKind { kDecode, kPrefill, kEmpty };

RowKind KindOf(const BatchSequence& sequence, const SplitOptions& options) {
  if (sequence.query_len == 0) return RowKind::kEmpty;
  const bool decode = options.decode_lengths == DecodeLengths::kUniform
                          ? sequence.query_len == options.decode_threshold
                          : sequence.query_len <= options.decode_threshold;
  return decode ? RowKind::kDecode : RowKind::kPrefill;
}

absl::Status CheckSequences(absl::Span<const BatchSequence> sequences) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t num_tokens = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const BatchSequence& sequence = sequences[i];
    if (sequence.query_len < 0 || sequence.num_computed < 0 || sequence.seq_len() > kMost) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequences[", i, "]: expected lengths of 0 to ", kMost, ", got num_computed ",
          sequence.num_computed, ", query_len ", sequence.query_len));
    }
    num_tokens += sequence.query_len;
  }
  if (num_tokens > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences: expected at most ", kMost, " new tokens, got ", num_tokens));
  }
  return absl::OkStatus();
}

void Count(const BatchSequence& sequence, BatchKind& kind) {
  ++kind.num_rows;
  kind.num_tokens += sequence.query_len;
  kind.max_query_len = std::max(kind.max_query_len, sequence.query_len);
  kind.max_seq_len = std::max(kind.max_seq_len, static_cast<int>(sequence.seq_len()));
}

}  // namespace

absl::StatusOr<BatchSplit> SplitBatch(absl::Span<const BatchSequence> sequences,
                                      const SplitOptions& options, absl::Span<int32_t> order) {
  if (options.decode_threshold < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode_threshold: expected at least 1, got ", options.decode_threshold));
  }
  if (order.size() != sequences.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("order: expected [", sequences.size(), "], got [", order.size(), "]"));
  }
  REPRISE_RETURN_IF_ERROR(CheckSequences(sequences));

  BatchSplit split;
  for (const BatchSequence& sequence : sequences) {
    switch (KindOf(sequence, options)) {
      case RowKind::kDecode:
        Count(sequence, split.decode);
        break;
      case RowKind::kPrefill:
        Count(sequence, split.prefill);
        break;
      case RowKind::kEmpty:
        ++split.num_empty_rows;
        break;
    }
  }
  const bool decode_first = options.order == SplitOrder::kDecodeFirst;
  BatchKind& second = decode_first ? split.prefill : split.decode;
  second.first_row = decode_first ? split.decode.num_rows : split.prefill.num_rows;

  int next_decode = split.decode.first_row;
  int next_prefill = split.prefill.first_row;
  int next_empty = split.decode.num_rows + split.prefill.num_rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const RowKind kind = KindOf(sequences[i], options);
    int& next = kind == RowKind::kDecode    ? next_decode
                : kind == RowKind::kPrefill ? next_prefill
                                            : next_empty;
    order[next++] = static_cast<int32_t>(i);
  }
  return split;
}

}  // namespace reprise
