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

absl::Status CheckSequence(const BatchSequence& sequence, int index, const BlockTableView& table,
                           bool has_key_start) {
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
  if (!has_key_start && sequence.key_start != 0) {
    return refused("key_start", "0 without a buffer for key_start", sequence.key_start);
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

// Returns the error for the first table entry that is not a valid block for the row's new tokens:
// "row must hold blocks: expected at least 0 in column 2, got -1".
absl::Status BlockRefused(const RowArgs& args, const CheckedRow& row, int index) {
  const ColumnRange columns = NewColumns(args, row);
  int32_t column = columns.first;
  while (IsServableBlock(args, row, /*group=*/0, column)) ++column;
  return absl::InvalidArgumentError(
      absl::StrCat("sequences[", index, "], table row ", row.table_row,
                   ": row must hold blocks: expected at least 0 in column ", column, ", got ",
                   BlockAt(args, row, /*group=*/0, column)));
}

RowArgs RowArgsOf(const BatchRequest& request, const BatchBuffers& buffers,
                  const PaddedSize& padded) {
  RowArgs args;
  args.table = request.table;
  args.table.num_blocks = INT32_MAX;
  args.null_blocks = NullBlocks::kAllowed;
  args.write_window = request.write_window.value_or(0);
  args.num_rows = padded.num_rows;
  args.num_tokens = padded.num_tokens;
  args.max_query_len = INT32_MAX;
  args.arrays = {.positions = buffers.positions.data(),
                 .slot_mapping = buffers.slot_mapping.data(),
                 .query_start_loc = buffers.query_start_loc.data(),
                 .seq_lens = buffers.seq_lens.data(),
                 .table_row = buffers.table_row.data(),
                 .key_start = buffers.key_start.data()};
  return PrepareRows(args);
}

int NumRows(const BatchRequest& request) {
  return static_cast<int>(request.order.empty() ? request.sequences.size() : request.order.size());
}

int SequenceOfRow(const BatchRequest& request, int row) {
  return request.order.empty() ? row : request.order[row];
}

struct LiveSizes {
  int num_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
};

// Checks all rows, but not their blocks, and returns the live sizes.
absl::StatusOr<LiveSizes> CheckRows(const BatchRequest& request, bool has_key_start,
                                    int max_tokens) {
  LiveSizes live;
  const int num_sequences = static_cast<int>(request.sequences.size());
  for (int row = 0; row < NumRows(request); ++row) {
    const int index = SequenceOfRow(request, row);
    if (index < 0 || index >= num_sequences) {
      return absl::InvalidArgumentError(
          absl::StrCat("order[", row, "]: expected 0 to ", num_sequences - 1, ", got ", index));
    }
    const BatchSequence& sequence = request.sequences[index];
    REPRISE_RETURN_IF_ERROR(CheckSequence(sequence, index, request.table, has_key_start));
    if (sequence.query_len > max_tokens - live.num_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_tokens: expected at most ", max_tokens, ", got ", live.num_tokens,
                       " plus ", sequence.query_len, " of sequences[", index, "]"));
    }
    if (sequence.query_len == 0) continue;
    live.num_tokens += sequence.query_len;
    live.max_query_len = std::max(live.max_query_len, sequence.query_len);
    live.max_seq_len = std::max(live.max_seq_len, static_cast<int>(sequence.seq_len()));
  }
  return live;
}

// Writes the rows. Errors: InvalidArgument for the first row with a new token without a valid
// block.
absl::Status WriteRows(const BatchRequest& request, const RowArgs& args) {
  absl::Status status;
  const auto row_of = [&](int r) -> CheckedRow {
    if (r >= NumRows(request)) return {};
    const int index = SequenceOfRow(request, r);
    const BatchSequence& sequence = request.sequences[index];
    if (sequence.query_len == 0) return {};
    CheckedRow row = CheckRow(args, {.is_padded = false,
                                     .table_row = sequence.table_row,
                                     .context_len = sequence.num_computed,
                                     .query_len = sequence.query_len,
                                     .key_start = sequence.key_start});
    if (!HasBlocks(SerialLanes(), args, row)) {
      status.Update(BlockRefused(args, row, index));
      row.fault = RowFault::kNoBlock;
    }
    return row;
  };
  WriteRowsInOrder(
      args, row_of, [](int, const CheckedRow&, int) { return 0; }, [](int, const CheckedRow&) {});
  return status;
}

}  // namespace

absl::StatusOr<BuiltBatch> BuildPagedBatch(const BatchRequest& request,
                                           const BatchBuffers& buffers) {
  const int num_rows = NumRows(request);
  const bool has_key_start = !buffers.key_start.empty();
  REPRISE_RETURN_IF_ERROR(CheckTable(request.table));
  if (request.write_window) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("write_window", *request.write_window, 1));
  }
  if (request.padded) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("padded.num_rows", request.padded->num_rows, num_rows));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("padded.num_tokens", request.padded->num_tokens, 0));
  }
  // Without a padded size, the buffers limit the number of tokens.
  const int max_tokens =
      request.padded
          ? request.padded->num_tokens
          : static_cast<int>(std::min(buffers.positions.size(), buffers.slot_mapping.size()));
  REPRISE_RETURN_IF_ERROR(
      CheckBuffers(buffers, request.padded ? request.padded->num_rows : num_rows, max_tokens));
  REPRISE_ASSIGN_OR_RETURN(const LiveSizes live, CheckRows(request, has_key_start, max_tokens));

  const PaddedSize padded =
      request.padded.value_or(PaddedSize{.num_rows = num_rows, .num_tokens = live.num_tokens});
  const RowArgs args = RowArgsOf(request, buffers, padded);
  REPRISE_RETURN_IF_ERROR(WriteRows(request, args));
  BuiltBatch built = {.batch = ArraysBatch(args.arrays, request.table, padded.num_rows,
                                           padded.num_tokens, live.max_query_len),
                      .positions = buffers.positions.subspan(0, padded.num_tokens),
                      .slot_mapping = buffers.slot_mapping.subspan(0, padded.num_tokens),
                      .num_live_rows = num_rows,
                      .num_live_tokens = live.num_tokens};
  built.batch.max_seq_len = live.max_seq_len;
  if (has_key_start) built.batch.key_start = args.arrays.key_start;
  return built;
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
