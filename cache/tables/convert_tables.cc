#include "reprise/cache/tables/convert_tables.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckEqual(absl::string_view name, absl::string_view other, int64_t expected,
                        int64_t got) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", other, " ", expected, ", got ", got));
}

absl::Status CheckGiven(absl::string_view name, const void* array, int64_t size) {
  if (array || size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", size, " elements, got none"));
}

absl::Status CheckAbsent(absl::string_view name, absl::string_view with, const void* array) {
  if (!array) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected none with ", with, ", got one"));
}

absl::Status CheckTable(const std::string& name, const BlockTableView& table) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".block_size", table.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".num_tables", table.num_tables, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".max_blocks", table.max_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".num_blocks", table.num_blocks, 0));
  if (table.num_tables < 2) return absl::OkStatus();
  return CheckAtLeast(name + ".row_stride", table.row_stride, table.max_blocks);
}

absl::Status CheckPacked(const std::string& name, const PackedBlockTable& packed) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".block_size", packed.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name + ".max_indices", packed.max_indices, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckGiven(name + ".block_indices", packed.block_indices, packed.max_indices));
  return CheckGiven(name + ".last_block_len", packed.last_block_len, packed.num_rows);
}

absl::Status CheckPackedInput(const ConvertTablesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckPacked("packed", args.packed));
  REPRISE_RETURN_IF_ERROR(
      CheckEqual("packed.num_rows", "num_rows", args.num_rows, args.packed.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAbsent("table", "packed", args.table.entries));
  REPRISE_RETURN_IF_ERROR(CheckAbsent("table_row", "packed", args.table_row));
  REPRISE_RETURN_IF_ERROR(CheckAbsent("key_start", "packed", args.key_start));
  REPRISE_RETURN_IF_ERROR(CheckAbsent("seq_lens", "packed", args.seq_lens));
  if (args.selection.keys == TableKeys::kSeqLen) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "selection must be kSeqLen with packed: expected all keys, got a part");
}

absl::Status CheckPaddedInput(const ConvertTablesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckTable("table", args.table));
  REPRISE_RETURN_IF_ERROR(CheckGiven("seq_lens", args.seq_lens, args.num_rows));
  if (WritesEntries(args)) {
    const int64_t num_entries = int64_t{args.table.num_tables} * args.table.max_blocks;
    REPRISE_RETURN_IF_ERROR(CheckGiven("table.entries", args.table.entries, num_entries));
  }
  if (args.selection.keys != TableKeys::kSeqLen && args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(
        CheckGiven("query_start_loc", args.query_start_loc, int64_t{args.num_rows} + 1));
  }
  return CheckAtLeast("selection.window_left", args.selection.window_left, 0);
}

absl::Status CheckOutputs(const ConvertTablesArgs& args) {
  const ConvertTablesOutputs& out = args.out;
  if (out.table.entries) {
    REPRISE_RETURN_IF_ERROR(CheckTable("out.table", out.table));
    REPRISE_RETURN_IF_ERROR(
        CheckAtLeast("out.table.num_tables", out.table.num_tables, args.num_rows));
  }
  if (out.packed.block_indptr) {
    REPRISE_RETURN_IF_ERROR(CheckPacked("out.packed", out.packed));
    REPRISE_RETURN_IF_ERROR(
        CheckAtLeast("out.packed.num_rows", out.packed.num_rows, args.num_rows));
    REPRISE_RETURN_IF_ERROR(CheckEqual("out.packed.block_size", "the input's",
                                       SourceBlockSize(args), out.packed.block_size));
  }
  if (!out.packed.block_indptr && !out.key_start_loc) return absl::OkStatus();
  return CheckEqual("out.table.block_size", "with out.packed or out.key_start_loc the input's",
                    SourceBlockSize(args), TargetBlockSize(args));
}

// Describes the lengths and the output position of a faulty row, for messages.
std::string DescribeRow(const ConvertTablesArgs& args, int r, const RowPlace& place) {
  std::string text;
  if (args.packed.block_indptr) {
    absl::StrAppend(&text, "block_indptr ", args.packed.block_indptr[r], " to ",
                    args.packed.block_indptr[r + 1], " of ", args.packed.max_indices,
                    ", last_block_len ", args.packed.last_block_len[r]);
  } else {
    absl::StrAppend(&text, "seq_len ", args.seq_lens[r]);
    if (args.key_start) absl::StrAppend(&text, " from ", args.key_start[r]);
    if (args.selection.keys != TableKeys::kSeqLen) {
      absl::StrAppend(&text, ", queries ", args.query_start_loc[r], " to ",
                      args.query_start_loc[r + 1]);
    }
    absl::StrAppend(&text, ", table row ", args.table_row ? args.table_row[r] : r, " of ",
                    args.table.num_tables, " with room for ", TableCapacity(args.table));
  }
  if (args.out.table.entries) {
    absl::StrAppend(&text, "; room for ", TableCapacity(args.out.table), " in out.table");
  }
  if (args.out.packed.block_indptr) {
    absl::StrAppend(&text, "; ", place.num_blocks, " of ", args.out.packed.max_indices,
                    " out.packed.block_indices used");
  }
  return text;
}

absl::Status FaultOf(const ConvertTablesArgs& args, int r, const RowPlace& place, RowFault fault,
                     absl::string_view detail) {
  const std::string_view reason = ToString(fault);
  return absl::InvalidArgumentError(
      absl::StrCat("rows[", r, "]: ", absl::string_view(reason.data(), reason.size()), ": ",
                   DescribeRow(args, r, place), detail));
}

// Checks the entries of a row if the block size changes.
absl::Status CheckColumns(const ConvertTablesArgs& args, int r, const SourceRow& row) {
  const int target = TargetBlockSize(args);
  for (int column = 0; column < NumBlocksFor(row.num_keys, target); ++column) {
    const RowFault fault = ColumnFault(args, row, column);
    if (fault == RowFault::kNone) continue;
    const int32_t first = row.first_key + column * target;
    return FaultOf(args, r, {}, fault,
                   absl::StrCat("; block ", column, ", of ", target, " tokens, begins at token ",
                                first, " with entry ", row.entries[first / SourceBlockSize(args)]));
  }
  return absl::OkStatus();
}

void Advance(const ConvertTablesArgs& args, const SourceRow& row, RowPlace& place) {
  place.num_blocks += NumBlocksFor(row.num_keys, SourceBlockSize(args));
  place.num_keys += row.num_keys;
}

}  // namespace

absl::Status CheckConvertTables(const ConvertTablesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(args.packed.block_indptr ? CheckPackedInput(args)
                                                   : CheckPaddedInput(args));
  return CheckOutputs(args);
}

void ConvertTablesOnHost(const ConvertTablesArgs& args) {
  RowPlace place = {};
  bool is_full = false;
  int32_t num_faults = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    SourceRow row = ReadRow(args, r);
    is_full = is_full || !FitsAt(args, place, row);
    if (is_full && row.num_keys > 0) row = EmptyRow(RowFault::kNoRoom);
    num_faults += ConvertRow(SerialLanes(), args, r, row, place) != RowFault::kNone;
    Advance(args, row, place);
  }
  FinishTables(args, place);
  if (args.out.num_faults) *args.out.num_faults = num_faults;
}

absl::Status ConvertTables(const ConvertTablesArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckConvertTables(args));
  RowPlace place = {};
  for (int r = 0; r < args.num_rows; ++r) {
    const SourceRow row = ReadRow(args, r);
    if (row.fault != RowFault::kNone) return FaultOf(args, r, place, row.fault, "");
    if (!FitsAt(args, place, row)) return FaultOf(args, r, place, RowFault::kNoRoom, "");
    if (ChangesBlockSize(args)) REPRISE_RETURN_IF_ERROR(CheckColumns(args, r, row));
    Advance(args, row, place);
  }
  ConvertTablesOnHost(args);
  return absl::OkStatus();
}

}  // namespace reprise
