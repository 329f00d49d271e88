#include "reprise/attention/metadata/batch_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckSequence(const BatchSequence& sequence, int index, const BlockTableView& table) {
  const auto refused = [index](absl::string_view field, absl::string_view expected, int64_t got) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences[", index, "].", field, ": expected ", expected, ", got ", got));
  };
  if (sequence.query_len < 0) return refused("query_len", "at least 0", sequence.query_len);
  if (sequence.num_computed < 0) {
    return refused("num_computed", "at least 0", sequence.num_computed);
  }
  if (sequence.query_len == 0) return absl::OkStatus();
  if (!HasTableRow(table, sequence.table_row)) {
    return refused("table_row", absl::StrCat("0 to ", table.num_tables - 1), sequence.table_row);
  }
  if (sequence.key_start < 0) return refused("key_start", "at least 0", sequence.key_start);
  const int64_t width = TableCapacity(table);
  if (sequence.key_start + sequence.seq_len() > width) {
    return refused(sequence.key_start == 0 ? "num_computed + query_len"
                                           : "key_start + num_computed + query_len",
                   absl::StrCat("at most ", width, " (max_blocks * block_size)"),
                   sequence.key_start + sequence.seq_len());
  }
  return absl::OkStatus();
}

absl::Status CheckBuffers(const BatchBuffers& buffers, int num_rows, int num_tokens) {
  const auto size = [](const auto& buffer) { return static_cast<int64_t>(buffer.size()); };
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("query_start_loc", size(buffers.query_start_loc), int64_t{num_rows} + 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("seq_lens", size(buffers.seq_lens), num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table_row", size(buffers.table_row), num_rows));
  if (!buffers.key_start.empty()) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("key_start", size(buffers.key_start), num_rows));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("positions", size(buffers.positions), num_tokens));
  return CheckAtLeast("slot_mapping", size(buffers.slot_mapping), num_tokens);
}

// "row must hold blocks: expected at least 0 in column 2, got -1": the first entry that a new token
// of the row cannot be written to.
absl::Status BlockRefused(const RowArgs& args, const CheckedRow& row, int index) {
  const ColumnRange columns = NewColumns(args, row);
  int32_t column = columns.first;
  while (IsServableBlock(args, row, /*group=*/0, column)) ++column;
  return absl::InvalidArgumentError(
      absl::StrCat("sequences[", index, "], table row ", row.table_row,
                   ": row must hold blocks: expected at least 0 in column ", column, ", got ",
                   BlockAt(args, row, /*group=*/0, column)));
}

RowArgs RowArgsOf(const BatchRequest& request, const BatchBuffers& buffers, int max_tokens) {
  RowArgs args;
  args.table = request.table;
  args.table.num_blocks = INT32_MAX;
  args.null_blocks = NullBlocks::kAllowed;
  args.write_window = request.write_window.value_or(0);
  args.num_tokens = max_tokens;
  args.max_query_len = INT32_MAX;
  args.arrays = {.positions = buffers.positions.data(),
                 .slot_mapping = buffers.slot_mapping.data(),
                 .query_start_loc = buffers.query_start_loc.data(),
                 .seq_lens = buffers.seq_lens.data(),
                 .table_row = buffers.table_row.data(),
                 .key_start = buffers.key_start.data()};
  return PrepareRows(args);
}

// Writes the live rows one by one and tracks the next row and token.
class RowWriter {
 public:
  RowWriter(const BatchRequest& request, const BatchBuffers& buffers, int max_tokens)
      : table_(request.table), buffers_(buffers), args_(RowArgsOf(request, buffers, max_tokens)) {
    buffers_.query_start_loc[0] = 0;
  }

  absl::Status Write(const BatchSequence& sequence, int index) {
    REPRISE_RETURN_IF_ERROR(CheckSequence(sequence, index, table_));
    if (sequence.query_len > args_.num_tokens - num_tokens_) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_tokens: expected at most ", args_.num_tokens, ", got ", num_tokens_,
                       " and ", sequence.query_len, " more of sequences[", index, "]"));
    }
    CheckedRow row;
    if (sequence.query_len > 0) {
      if (buffers_.key_start.empty() && sequence.key_start != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "sequences[", index, "].key_start: expected 0 without a buffer for key_start, got ",
            sequence.key_start));
      }
      row = CheckRow(args_, {.is_padded = false,
                             .table_row = sequence.table_row,
                             .context_len = sequence.num_computed,
                             .query_len = sequence.query_len,
                             .key_start = sequence.key_start});
      if (!HasBlocks(SerialLanes(), args_, row)) return BlockRefused(args_, row, index);
    }
    WriteBatchRow(args_, num_rows_, row, num_tokens_);
    for (int i = 0; i < row.query_len; ++i) WriteNewToken(args_, row, i, num_tokens_++, 0);
    buffers_.query_start_loc[++num_rows_] = num_tokens_;
    max_query_len_ = std::max(max_query_len_, sequence.query_len);
    max_seq_len_ = std::max(max_seq_len_, buffers_.seq_lens[num_rows_ - 1]);
    return absl::OkStatus();
  }

  // Resets everything up to the padded size.
  BuiltBatch Finish(const PaddedSize& padded) const {
    for (int row = num_rows_; row < padded.num_rows; ++row) {
      WriteBatchRow(args_, row, {}, num_tokens_);
    }
    buffers_.query_start_loc[padded.num_rows] = num_tokens_;
    for (int token = num_tokens_; token < padded.num_tokens; ++token) {
      WriteInertToken(args_, token);
    }
    return {.batch = {.query_start_loc = buffers_.query_start_loc.data(),
                      .seq_lens = buffers_.seq_lens.data(),
                      .table_row = buffers_.table_row.data(),
                      .key_start = buffers_.key_start.empty() ? nullptr : buffers_.key_start.data(),
                      .block_table = table_.entries,
                      .block_table_stride = table_.row_stride,
                      .num_rows = padded.num_rows,
                      .num_tokens = padded.num_tokens,
                      .max_query_len = max_query_len_,
                      .max_seq_len = max_seq_len_,
                      .num_tables = table_.num_tables,
                      .max_blocks = table_.max_blocks},
            .positions = buffers_.positions.subspan(0, padded.num_tokens),
            .slot_mapping = buffers_.slot_mapping.subspan(0, padded.num_tokens),
            .num_live_rows = num_rows_,
            .num_live_tokens = num_tokens_};
  }

  int num_tokens() const { return num_tokens_; }

 private:
  const BlockTableView& table_;
  const BatchBuffers& buffers_;
  const RowArgs args_;
  int num_rows_ = 0;
  int num_tokens_ = 0;
  int max_query_len_ = 0;
  int max_seq_len_ = 0;
};

}  // namespace

absl::StatusOr<BuiltBatch> BuildPagedBatch(const BatchRequest& request,
                                           const BatchBuffers& buffers) {
  const int num_sequences = static_cast<int>(request.sequences.size());
  const int num_rows =
      request.order.empty() ? num_sequences : static_cast<int>(request.order.size());
  REPRISE_RETURN_IF_ERROR(CheckTable(request.table));
  if (request.write_window) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("write_window", *request.write_window, 1));
  }
  if (request.padded) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("padded.num_rows", request.padded->num_rows, num_rows));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("padded.num_tokens", request.padded->num_tokens, 0));
  }
  // Without a padded size, at most as many tokens as the buffers hold.
  const int max_tokens =
      request.padded
          ? request.padded->num_tokens
          : static_cast<int>(std::min(buffers.positions.size(), buffers.slot_mapping.size()));
  REPRISE_RETURN_IF_ERROR(
      CheckBuffers(buffers, request.padded ? request.padded->num_rows : num_rows, max_tokens));

  RowWriter rows(request, buffers, max_tokens);
  for (int row = 0; row < num_rows; ++row) {
    const int index = request.order.empty() ? row : request.order[row];
    if (index < 0 || index >= num_sequences) {
      return absl::InvalidArgumentError(
          absl::StrCat("order[", row, "]: expected 0 to ", num_sequences - 1, ", got ", index));
    }
    REPRISE_RETURN_IF_ERROR(rows.Write(request.sequences[index], index));
  }
  return rows.Finish(
      request.padded.value_or(PaddedSize{.num_rows = num_rows, .num_tokens = rows.num_tokens()}));
}

absl::StatusOr<BatchBuilder> BatchBuilder::Create(const BatchBuilderOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_rows", options.max_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_tokens", options.max_tokens, 0));
  return BatchBuilder(options);
}

BatchBuilder::BatchBuilder(const BatchBuilderOptions& options)
    : query_start_loc_(static_cast<size_t>(options.max_rows) + 1),
      seq_lens_(options.max_rows),
      table_row_(options.max_rows),
      key_start_(options.key_starts == KeyStarts::kGiven ? options.max_rows : 0),
      positions_(options.max_tokens),
      slot_mapping_(options.max_tokens) {}

absl::StatusOr<BuiltBatch> BatchBuilder::Build(const BatchRequest& request) {
  return BuildPagedBatch(request, {.query_start_loc = absl::MakeSpan(query_start_loc_),
                                   .seq_lens = absl::MakeSpan(seq_lens_),
                                   .table_row = absl::MakeSpan(table_row_),
                                   .positions = absl::MakeSpan(positions_),
                                   .slot_mapping = absl::MakeSpan(slot_mapping_),
                                   .key_start = absl::MakeSpan(key_start_)});
}

}  // namespace reprise
