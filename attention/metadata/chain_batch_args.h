// Arguments of a chain batch, and the work on one of its rows; shared by the host and device forms
// (attention/metadata/chain_batch.h).

#ifndef REPRISE_ATTENTION_METADATA_CHAIN_BATCH_ARGS_H_
#define REPRISE_ATTENTION_METADATA_CHAIN_BATCH_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/base/host_device.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

struct ChainBatchArgs {
  // [num_rows] table row of the row's sequence; negative: a padded row.
  const int32_t* slots = nullptr;
  // [num_tables] by table row: the sequence's keys in the cache before this step, of all ranks.
  const int32_t* seq_len = nullptr;
  // [num_rows] new tokens of the row, in addition to num_certain.
  const int32_t* query_lens = nullptr;
  // New tokens that each live row has in addition to query_lens: 1 if query_lens counts only
  // drafts.
  int num_certain = 0;
  // [num_tables] by table row: the row's first new token. Absent: `tokens` holds it.
  const int32_t* first_token = nullptr;
  // [num_rows, token_stride] the new tokens (after the first, if that is in first_token); read only
  // if arrays.token_ids is present. Absent: 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  BlockTableView table = {};        // of this rank
  int64_t max_context_len = 0;      // positions are below it
  KeyPositions key_positions = {};  // the table, the slots and seq_lens are those of this rank
  KeyPart part = KeyPart::kAll;

  // Sizes of the arrays; under capture the captured ones.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;  // num_certain included
  BatchArrays arrays = {};
};

// Tokens beyond the limit are clipped: they are drafts.
constexpr RankRowArgs ChainRowArgs(const ChainBatchArgs& args) {
  RankRowArgs rows;
  rows.table = args.table;
  rows.key_positions = args.key_positions;
  rows.max_context_len = args.max_context_len;
  rows.past_limit = PastLimit::kClip;
  rows.part = args.part;
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = args.max_query_len;
  rows.arrays = args.arrays;
  return PrepareRows(rows);
}

// Returns a row, checked against its lengths only.
REPRISE_HOST_DEVICE constexpr CheckedRow ChainRowOf(const ChainBatchArgs& args,
                                                    const RankRowArgs& rows, int row_idx) {
  RowRequest request;
  const int32_t slot = args.slots[row_idx];
  if (slot >= 0) {
    request.is_padded = false;
    request.table_row = slot;
    if (HasTableRow(args.table, slot)) {
      const int64_t num_listed = args.query_lens[row_idx];
      request.context_len = args.seq_len[slot];
      request.query_len = num_listed < 0 ? num_listed : num_listed + args.num_certain;
    }
  }
  return CheckRow(rows, request);
}

REPRISE_HOST_DEVICE constexpr int32_t ChainTokenId(const ChainBatchArgs& args, int row,
                                                   int32_t slot, int i) {
  if (args.first_token) {
    if (i == 0) return args.first_token[slot];
    --i;
  }
  return args.tokens ? args.tokens[row * args.token_stride + i] : 0;
}

// Writes a row whose tokens begin at `start`, after those of all previous rows.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteChainRow(const Lanes& lanes, const ChainBatchArgs& args,
                                       const RankRowArgs& rows, int row_idx, int64_t start) {
  const CheckedRow row = ChainRowOf(args, rows, row_idx);
  WritePlacedRow(lanes, rows, row_idx, row, start, [&](int i) {
    return rows.arrays.token_ids ? ChainTokenId(args, row_idx, row.table_row, i) : 0;
  });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_CHAIN_BATCH_ARGS_H_
