// What a chain batch is made of, and what is done to one row of it: shared by the host's and the
// device's form (attention/chain_batch.h).

#ifndef ATTENTION_CHAIN_BATCH_ARGS_H_
#define ATTENTION_CHAIN_BATCH_ARGS_H_

#include <cstdint>

#include "attention/batch_arrays.h"
#include "attention/context_parallel.h"
#include "attention/host_device.h"
#include "attention/paged_batch.h"
#include "attention/paged_table.h"

namespace reprise {

// Which keys a context-parallel rank attends to.
enum class KeyPart {
  kAll,      // those of this step too, each on the rank that holds it
  kContext,  // those before this step; its own are attended to apart, and merged
};

struct ChainBatchArgs {
  // [num_rows] table row of the row's sequence; negative: a padded row.
  const int32_t* slots = nullptr;
  // [num_tables] by table row: the sequence's keys in the cache before this step, of all ranks.
  const int32_t* seq_len = nullptr;
  // [num_rows] new tokens of the row, besides num_certain.
  const int32_t* query_lens = nullptr;
  // New tokens that each live row has besides query_lens: 1 where that counts drafts only.
  int num_certain = 0;
  // [num_tables] by table row: the row's first new token. Absent: `tokens` holds it.
  const int32_t* first_token = nullptr;
  // [num_rows, token_stride] the new tokens (after the first, if that is in first_token); read only
  // if arrays.token_ids is there. Absent: 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  PagedTable table = {};            // of this rank
  int64_t max_context_len = 0;      // positions are below it
  KeyPositions key_positions = {};  // the table, the slots and seq_lens are those of this rank
  KeyPart part = KeyPart::kAll;

  // Sizes of the arrays; under capture the captured ones.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;  // num_certain included
  BatchArrays arrays = {};
};

// Sequences may be so long, with what is new.
constexpr int64_t ContextLimit(const ChainBatchArgs& args) {
  const int64_t room = GlobalCapacity(TableCapacity(args.table), args.key_positions);
  return room < args.max_context_len ? room : args.max_context_len;
}

// How many tokens a row has, and what is wrong with it as far as its lengths say.
struct ChainRowLen {
  int num_tokens = 0;
  RowFault fault = RowFault::kNone;
};

// Tokens that would pass the limit are clipped: they are drafts.
REPRISE_HOST_DEVICE constexpr ChainRowLen ChainRowLenOf(const ChainBatchArgs& args, int row) {
  const int32_t slot = args.slots[row];
  if (slot < 0) return {};
  if (!HasTableRow(args.table, slot)) return {0, RowFault::kTableRow};
  const int64_t limit = ContextLimit(args);
  const int64_t seq_len = args.seq_len[slot];
  const int64_t wanted = static_cast<int64_t>(args.query_lens[row]) + args.num_certain;
  if (seq_len < 0 || seq_len > limit || args.query_lens[row] < 0 || wanted > args.max_query_len) {
    return {0, RowFault::kLength};
  }
  const int64_t room = limit - seq_len;
  return {static_cast<int>(wanted < room ? wanted : room), RowFault::kNone};
}

// The slot of the token at `position`; -1 on all ranks but its owner, and -2 if the owner has no
// block for it.
REPRISE_HOST_DEVICE constexpr int64_t ChainTokenSlot(const ChainBatchArgs& args, int32_t table_row,
                                                     int64_t position) {
  if (OwnerOf(position, args.key_positions) != args.key_positions.rank) return -1;
  const int64_t slot = TableSlot(args.table, table_row, LocalIndex(position, args.key_positions));
  return slot < 0 ? -2 : slot;
}

REPRISE_HOST_DEVICE constexpr int32_t ChainTokenId(const ChainBatchArgs& args, int row,
                                                   int32_t slot, int i) {
  if (args.first_token) {
    if (i == 0) return args.first_token[slot];
    --i;
  }
  return args.tokens ? args.tokens[row * args.token_stride + i] : 0;
}

// Writes a row whose tokens begin at `start`, after those of all rows before it.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteChainRow(const Lanes& lanes, const ChainBatchArgs& args, int row,
                                       int64_t start) {
  const BatchArrays& arrays = args.arrays;
  const ChainRowLen len = ChainRowLenOf(args, row);
  const int32_t slot = args.slots[row];
  const int32_t prefix = len.num_tokens > 0 ? args.seq_len[slot] : 0;
  const int64_t first = start < args.num_tokens ? start : args.num_tokens;
  const int64_t end =
      start + len.num_tokens < args.num_tokens ? start + len.num_tokens : args.num_tokens;
  RowFault fault = len.fault;
  if (len.num_tokens > 0 && start + len.num_tokens > args.num_tokens) {
    fault = RowFault::kNoRoom;
  } else if (lanes.Any(len.num_tokens, [&](int i) {
               return ChainTokenSlot(args, slot, static_cast<int64_t>(prefix) + i) == -2;
             })) {
    fault = RowFault::kNoBlock;
  }
  const bool is_live = fault == RowFault::kNone && len.num_tokens > 0;
  lanes.ForEach(static_cast<int>(end - first), [&](int i) {
    TokenEntry entry;
    if (is_live) {
      entry.token_id = arrays.token_ids ? ChainTokenId(args, row, slot, i) : 0;
      entry.position = prefix + i;
      entry.slot = ChainTokenSlot(args, slot, entry.position);
    }
    WriteToken(arrays, first + i, entry);
  });
  lanes.ForEach(1, [&](int) {
    RowEntry entry;
    if (is_live) {
      const int64_t num_keys =
          args.part == KeyPart::kAll ? static_cast<int64_t>(prefix) + len.num_tokens : prefix;
      entry.seq_len = static_cast<int32_t>(LocalLen(num_keys, args.key_positions));
      entry.table_row = slot;
      entry.last_token = static_cast<int32_t>(end - 1);
    }
    arrays.query_start_loc[row] = static_cast<int32_t>(first);
    WriteRow(arrays, row, entry, fault);
  });
}

}  // namespace reprise

#endif  // ATTENTION_CHAIN_BATCH_ARGS_H_
