// Functions that make one row of a batch, and the row's tokens, from lengths: cached tokens and new
// tokens of a sequence. They run on the host and on the device.
//
// Callers: BuildPagedBatch() and BatchGather (attention/metadata), the passes of a draft model and
// the advance from one decode step to the next (attention/speculation), and the runner's refill
// (runner/slots/refill.h). A builder supplies the rows and assigns them to threads. This file
// defines which rows are valid, where their tokens are written and what the arrays hold.
//
//   RowArgs args = PrepareRows(RowArgs{.table = table, .num_rows = 16, .num_tokens = 32,
//                                      .max_query_len = 8, .arrays = arrays});
//   CheckedRow row = CheckRow(
//       args, {.is_padded = false, .table_row = 3, .context_len = 21, .query_len = 2});
//   if (!HasBlocks(SerialLanes(), args, row)) row.fault = RowFault::kNoBlock;
//   WriteBatchRow(args, /*row_idx=*/0, row, /*first_token=*/0);       // seq_lens[0] = 23, ...
//   WriteNewToken(args, row, /*i=*/1, /*token=*/1, /*token_id=*/42);  // positions[1] = 22, ...
//
// A row goes through three steps:
//   check    CheckRow() checks the row's lengths against the table and the limit. HasBlocks()
//            checks the table entries of the row's new tokens. An invalid row has a fault.
//   place    the builder assigns the row the tokens that follow the previous row's tokens
//   write    WriteBatchRow() once, WriteNewToken() for each new token
//
// A row without tokens, a padded row and a row with a fault are inert: their seq_len is 0, and each
// token that they were assigned has slot -1. row_faults holds the reason.
//
// Positions are positions in the whole sequence. Under context parallelism a token's index in the
// rank's table is its local index, and other ranks' tokens get slot -1.
//
// The functions write only to the arrays. They are constexpr or marked for host and device, so that
// nvcc compiles them for the device. No allocation.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_ROWS_H_
#define REPRISE_ATTENTION_METADATA_BATCH_ROWS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/base/divisor.h"
#include "reprise/base/host_device.h"
#include "reprise/base/lanes.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// Handling of tokens beyond the limit: the row gets a fault, or the tokens are dropped (drafts).
enum class PastLimit : int8_t { kFault, kClip };

// Whether the block of a new token may be null. A token in a null block is not written.
enum class NullBlocks : int8_t {
  kByRetention,  // only if the group no longer needs any token of the block
  kAllowed,
};

// Arguments of a batch of rows. `Positions` is KeyPositions, or WholeSequence for builders without
// ranks.
template <typename Positions>
struct BasicRowArgs {
  BlockTableView table = {};  // the first group's table
  int64_t group_stride = 0;   // elements between the tables of adjacent groups
  int num_groups = 1;         // 1 to kMaxKvGroups
  NullBlocks null_blocks = NullBlocks::kByRetention;
  PastLimit past_limit = PastLimit::kFault;
  KeyPart part = KeyPart::kAll;
  Positions key_positions = {};  // the table and the slots belong to this rank
  // Number of last new tokens of a row that are written; 0: all.
  int write_window = 0;
  int64_t max_context_len = INT32_MAX;

  // Derived from the other fields by PrepareRows(), once on the host.
  int64_t context_limit = 0;   // ContextLimit()
  Divisor block_size_divisor;  // divides by table.block_size

  // Sizes of the arrays; under capture, the captured sizes.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  BatchArrays arrays = {};

  KvGroupSpec groups[kMaxKvGroups] = {};  // windows and chunks exclude ranks and key_start
};

using RowArgs = BasicRowArgs<WholeSequence>;
using RankRowArgs = BasicRowArgs<KeyPositions>;

// Returns the maximum number of tokens of a sequence, including the step's tokens. The result is at
// most INT32_MAX, even if the ranks together have room for more, because positions are int32.
// REQUIRES: valid ranks.
template <typename Positions = WholeSequence>
constexpr int64_t ContextLimit(const BlockTableView& table, int64_t max_context_len,
                               const Positions& ranks = {}) {
  const int64_t room = GlobalCapacity(TableCapacity(table), ranks);
  const int64_t limit = room < max_context_len ? room : max_context_len;
  return limit < INT32_MAX ? limit : INT32_MAX;
}

// Sets the derived fields of the arguments. REQUIRES: table.block_size >= 1 and valid ranks.
template <typename Args>
constexpr Args PrepareRows(Args args) {
  args.context_limit = ContextLimit(args.table, args.max_context_len, args.key_positions);
  args.block_size_divisor = Divisor(static_cast<uint32_t>(args.table.block_size));
  return args;
}

// A row as the builder requests it.
struct RowRequest {
  bool is_padded = true;    // if true, the other fields are ignored
  int64_t table_row = 0;    // the sequence's row in the tables of all groups
  int64_t context_len = 0;  // tokens of the sequence in the cache before the step, on all ranks
  int64_t query_len = 0;    // new tokens
  int64_t key_start = 0;    // index of the sequence's first token in its table row
};

// A row after CheckRow().
struct CheckedRow {
  int32_t table_row = 0;
  int32_t context_len = 0;
  int32_t query_len = 0;
  int32_t key_start = 0;
  RowFault fault = RowFault::kNone;

  constexpr bool is_live() const { return query_len > 0 && fault == RowFault::kNone; }
};

// Checks a row's table row and lengths, but not its blocks. A row with a fault has query_len 0.
template <typename Args>
REPRISE_HOST_DEVICE constexpr CheckedRow CheckRow(const Args& args, const RowRequest& request) {
  CheckedRow row;
  if (request.is_padded) return row;
  if (!HasTableRow(args.table, request.table_row)) {
    row.fault = RowFault::kTableRow;
    return row;
  }
  int64_t limit = args.context_limit;
  if (request.key_start != 0) {  // tokens before key_start fill the table, but are not context
    const int64_t behind = ContextLimit(args.table, INT32_MAX) - request.key_start;
    if (behind < limit) limit = behind;
  }
  const int64_t room = limit - request.context_len;
  if (request.key_start < 0 || request.context_len < 0 || room < 0 || request.query_len < 0 ||
      request.query_len > args.max_query_len ||
      (request.query_len > room && args.past_limit == PastLimit::kFault)) {
    row.fault = RowFault::kLength;
    return row;
  }
  row.table_row = static_cast<int32_t>(request.table_row);
  row.context_len = static_cast<int32_t>(request.context_len);
  row.query_len = static_cast<int32_t>(request.query_len < room ? request.query_len : room);
  row.key_start = static_cast<int32_t>(request.key_start);
  return row;
}

// Returns the index in its table row of the token at `position`.
// REQUIRES: this rank holds the token.
template <typename Args>
REPRISE_HOST_DEVICE constexpr int64_t PlaceOf(const Args& args, const CheckedRow& row,
                                              int64_t position) {
  return row.key_start + LocalIndex(position, args.key_positions);
}

// The table columns of the row's new tokens on this rank; the same in the tables of all groups.
struct ColumnRange {
  int32_t first = 0;
  int32_t end = 0;

  constexpr int size() const { return end - first; }
};

template <typename Args>
REPRISE_HOST_DEVICE constexpr ColumnRange NewColumns(const Args& args, const CheckedRow& row) {
  const int64_t first = row.key_start + LocalLen(row.context_len, args.key_positions);
  const int64_t end =
      row.key_start + LocalLen(int64_t{row.context_len} + row.query_len, args.key_positions);
  if (end <= first) return {};
  const Divisor& divisor = args.block_size_divisor;
  return {static_cast<int32_t>(divisor.Divide(static_cast<uint32_t>(first))),
          static_cast<int32_t>(divisor.Divide(static_cast<uint32_t>(end - 1))) + 1};
}

template <typename Args>
REPRISE_HOST_DEVICE constexpr int32_t BlockAt(const Args& args, const CheckedRow& row, int group,
                                              int64_t column) {
  return args.table
      .entries[group * args.group_stride + int64_t{row.table_row} * args.table.row_stride + column];
}

// Returns whether the block in a column is valid for the row's tokens in that column.
template <typename Args>
REPRISE_HOST_DEVICE constexpr bool IsServableBlock(const Args& args, const CheckedRow& row,
                                                   int group, int32_t column) {
  const int32_t block = BlockAt(args, row, group, column);
  if (block != 0) return block >= 1 && block < args.table.num_blocks;
  if (args.null_blocks == NullBlocks::kAllowed) return true;
  // A null block is valid if the row's last query needs no token of the column.
  const int64_t end = int64_t{row.context_len} + row.query_len;
  const int64_t column_end = (int64_t{column} + 1) * args.table.block_size - row.key_start;
  return (column_end < end ? column_end : end) <= FirstNeededPosition(args.groups[group], end - 1);
}

// Returns whether a group's table has valid blocks for the row's new tokens. Lanes: base/lanes.h.
template <typename Lanes, typename Args>
REPRISE_HOST_DEVICE bool HasBlocks(const Lanes& lanes, const Args& args, const CheckedRow& row,
                                   int group) {
  if (!HoldsOwnTokens(args.groups[group])) return true;
  const ColumnRange columns = NewColumns(args, row);
  return !lanes.Any(columns.size(),
                    [&](int i) { return !IsServableBlock(args, row, group, columns.first + i); });
}

// Returns whether the tables of all groups have valid blocks for the row's new tokens.
template <typename Lanes, typename Args>
REPRISE_HOST_DEVICE bool HasBlocks(const Lanes& lanes, const Args& args, const CheckedRow& row) {
  for (int group = 0; group < args.num_groups; ++group) {
    if (!HasBlocks(lanes, args, row, group)) return false;
  }
  return true;
}

// Returns the slot of the row's i-th new token in a group: block * block_size + offset. Returns -1
// if the token is not written, for one of these reasons: another rank holds it; it is older than
// the write window; its block is null; the group holds the encoder's keys. REQUIRES: HasBlocks().
template <typename Args>
REPRISE_HOST_DEVICE constexpr int64_t NewTokenSlot(const Args& args, const CheckedRow& row,
                                                   int group, int i) {
  const int64_t position = int64_t{row.context_len} + i;
  if (!IsOwn(position, args.key_positions)) return -1;
  if (args.write_window > 0 && i < row.query_len - args.write_window) return -1;
  if (!HoldsOwnTokens(args.groups[group])) return -1;
  const auto place = static_cast<uint32_t>(PlaceOf(args, row, position));
  const uint32_t column = args.block_size_divisor.Divide(place);
  const int32_t block = BlockAt(args, row, group, column);
  if (block == 0) return -1;
  const auto offset = static_cast<int64_t>(place - column * args.block_size_divisor.value());
  return static_cast<int64_t>(block) * args.table.block_size + offset;
}

// Writes the entries of a new token: id, position, and the slot in every group.
template <typename Args>
REPRISE_HOST_DEVICE constexpr void WriteNewToken(const Args& args, const CheckedRow& row, int i,
                                                 int64_t token, int32_t token_id) {
  WriteToken(args.arrays, token,
             {.token_id = token_id,
              .position = row.context_len + i,
              .slot = NewTokenSlot(args, row, /*group=*/0, i)});
  for (int group = 1; group < args.num_groups; ++group) {
    args.arrays.group_slots(group)[token] = NewTokenSlot(args, row, group, i);
  }
}

// Writes a token of an inert row, or a token after all rows.
template <typename Args>
REPRISE_HOST_DEVICE constexpr void WriteInertToken(const Args& args, int64_t token) {
  WriteToken(args.arrays, token, {});
  for (int group = 1; group < args.num_groups; ++group) args.arrays.group_slots(group)[token] = -1;
}

// Writes the entries of a row. `first_token` is the index of the row's first token; for a row
// without tokens, the number of tokens of the previous rows.
template <typename Args>
REPRISE_HOST_DEVICE constexpr void WriteBatchRow(const Args& args, int row_idx,
                                                 const CheckedRow& row, int64_t first_token) {
  RowEntry entry;
  if (row.is_live()) {
    const int64_t end = int64_t{row.context_len} + row.query_len;
    const auto context_len = static_cast<int32_t>(LocalLen(row.context_len, args.key_positions));
    entry.seq_len = args.part == KeyPart::kContext
                        ? context_len
                        : static_cast<int32_t>(LocalLen(end, args.key_positions));
    entry.context_len = context_len;
    entry.table_row = row.table_row;
    entry.key_start = row.key_start;
    entry.last_token = static_cast<int32_t>(first_token + row.query_len - 1);
    entry.tail_len = row.query_len;  // for a tree, the number of nodes
  }
  args.arrays.query_start_loc[row_idx] = static_cast<int32_t>(first_token);
  WriteRow(args.arrays, row_idx, entry, row.fault);
}

// Returns the row's fault: the fault from CheckRow(), or kNoRoom or kNoBlock. `start` is the number
// of tokens of all previous rows.
template <typename Lanes, typename Args>
REPRISE_HOST_DEVICE RowFault FaultOfPlace(const Lanes& lanes, const Args& args,
                                          const CheckedRow& row, int64_t start) {
  if (!row.is_live()) return row.fault;
  if (start + row.query_len > args.num_tokens) return RowFault::kNoRoom;
  return HasBlocks(lanes, args, row) ? RowFault::kNone : RowFault::kNoBlock;
}

// The range of the batch's tokens that belongs to a row, whether the row is live or inert.
struct TokenRange {
  int64_t first = 0;
  int64_t end = 0;
};

template <typename Args>
REPRISE_HOST_DEVICE constexpr TokenRange TokensOf(const Args& args, const CheckedRow& row,
                                                  int64_t start) {
  const int64_t end = start + row.query_len;
  return {start < args.num_tokens ? start : args.num_tokens,
          end < args.num_tokens ? end : args.num_tokens};
}

// Writes a row and its tokens, for builders that compute the row's first token from lengths only. A
// row with kNoRoom or kNoBlock therefore keeps its tokens, which are inert. token_id_of(i) returns
// the id of the row's i-th new token. Returns the row's fault.
template <typename Lanes, typename Args, typename TokenIdOf>
REPRISE_HOST_DEVICE RowFault WritePlacedRow(const Lanes& lanes, const Args& args, int row_idx,
                                            CheckedRow row, int64_t start, TokenIdOf token_id_of) {
  row.fault = FaultOfPlace(lanes, args, row, start);
  const TokenRange tokens = TokensOf(args, row, start);
  lanes.ForEach(static_cast<int>(tokens.end - tokens.first), [&](int i) {
    if (row.is_live()) {
      WriteNewToken(args, row, i, tokens.first + i, token_id_of(i));
    } else {
      WriteInertToken(args, tokens.first + i);
    }
  });
  lanes.ForEach(1, [&](int) { WriteBatchRow(args, row_idx, row, tokens.first); });
  return row.fault;
}

// Number of tokens and number of rows with a fault in a batch.
struct RowCounts {
  int32_t num_tokens = 0;
  int32_t num_faults = 0;
};

// Writes all rows of a batch in order, and the inert tokens after the last row. row_of(r) returns
// row r after CheckRow(); token_id_of(r, row, i) returns the id of the row's i-th new token;
// written(r, row) is called after each row. If a row's tokens exceed num_tokens, that row and all
// later rows with tokens get the fault kNoRoom.
template <typename Args, typename RowOf, typename TokenIdOf, typename Written>
RowCounts WriteRowsInOrder(const Args& args, RowOf row_of, TokenIdOf token_id_of, Written written) {
  RowCounts counts;
  bool is_full = false;
  for (int r = 0; r < args.num_rows; ++r) {
    CheckedRow row = row_of(r);
    if (row.is_live() && int64_t{counts.num_tokens} + row.query_len > args.num_tokens) {
      is_full = true;
    }
    if (row.is_live() && is_full) row.fault = RowFault::kNoRoom;
    counts.num_faults += row.fault != RowFault::kNone;
    WriteBatchRow(args, r, row, counts.num_tokens);
    for (int i = 0; row.is_live() && i < row.query_len; ++i) {
      WriteNewToken(args, row, i, counts.num_tokens++, token_id_of(r, row, i));
    }
    written(r, row);
  }
  args.arrays.query_start_loc[args.num_rows] = counts.num_tokens;
  for (int token = counts.num_tokens; token < args.num_tokens; ++token) {
    WriteInertToken(args, token);
  }
  return counts;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_ROWS_H_
