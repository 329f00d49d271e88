// Arguments of a gathered batch, and the functions that gather one row. Shared by the host and
// device forms (attention/metadata/batch_gather.h).

#ifndef REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_
#define REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// Conventions for the tokens that a sequence length counts, and conversions between them (S14).
//
//   form              SGLang, vLLM                        10 cached tokens, 1 + 3 new tokens
//   kBeforeStep       num_computed_tokens                 10  no token of this step
//   kWithoutDrafts    seq_lens of a verify batch          11  the verified token, not the drafts
//   kWithStep         cache_seqlens; PagedBatch.seq_lens  14  all tokens of this step
//
//   int seq_len = ConvertSeqLen(11, SeqLenForm::kWithoutDrafts, SeqLenForm::kWithStep,
//                               /*num_verified=*/1, /*num_drafts=*/3);   // 14
//
// An inert row has length 0 in every form.
enum class SeqLenForm {
  kBeforeStep,
  kWithoutDrafts,
  kWithStep,
};

// Returns the number of tokens of this step that a form counts.
constexpr int64_t CountedTokens(SeqLenForm form, int64_t num_verified, int64_t num_drafts) {
  switch (form) {
    case SeqLenForm::kBeforeStep:
      return 0;
    case SeqLenForm::kWithoutDrafts:
      return num_verified;
    case SeqLenForm::kWithStep:
      return num_verified + num_drafts;
  }
  return 0;
}

// Converts a length from one form to another. A row without tokens of this step is inert, and its
// length is 0. If a length is too small for its form, the result is negative, and the builders
// reject it.
constexpr int64_t ConvertSeqLen(int64_t seq_len, SeqLenForm from, SeqLenForm to,
                                int64_t num_verified, int64_t num_drafts) {
  if (num_verified + num_drafts == 0) return 0;
  return seq_len - CountedTokens(from, num_verified, num_drafts) +
         CountedTokens(to, num_verified, num_drafts);
}

struct BatchGatherArgs {
  const int32_t* table_row = nullptr;      // [num_rows] row of `table`; negative: padded row
  const int32_t* query_lens = nullptr;     // [num_rows] new tokens in addition to num_verified
  const int32_t* num_live_rows = nullptr;  // [1], clamped to 0 .. num_rows; absent: num_rows
  // Number of verified new tokens per row, in addition to query_lens. Set it to 1 if query_lens
  // counts only drafts.
  int num_verified = 0;
  // The length of each sequence, in one of the next two arrays.
  const int32_t* seq_lens = nullptr;        // [num_rows]
  const int32_t* table_seq_lens = nullptr;  // [num_tables] by table row
  // kWithoutDrafts counts one token of this step, whatever num_verified is.
  SeqLenForm seq_len_form = SeqLenForm::kWithStep;
  // [num_rows] index of the sequence's first token in its table row, as in BatchSequence. Absent:
  // 0. Only with one rank and KeyPart::kAll.
  const int32_t* key_start = nullptr;
  // [num_tables] first new token, by table row. Absent: `tokens` also holds the first new token.
  const int32_t* first_token = nullptr;
  // [num_rows, token_stride] the new tokens, without the first if first_token is given. Read only
  // if arrays.token_ids is present. Absent: their ids are 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  BlockTableView table = {};        // of this rank
  KeyPositions key_positions = {};  // the table, the slots and arrays.seq_lens describe this rank
  KeyPart part = KeyPart::kAll;
  PastLimit past_limit = PastLimit::kFault;
  // Whether blocks of new tokens may be null, for example if they are left of the window. Tokens in
  // null blocks are not written. kByRetention: no block may be null.
  NullBlocks null_blocks = NullBlocks::kAllowed;
  // Number of last new tokens of each sequence that are written; 0: all. Only for prefills that
  // attend to contiguous keys (RaggedBatch) in layers with a window of this size. If attention
  // reads the cache instead, the first queries lack keys.
  int write_window = 0;

  // The shape of the result, constant under capture. Attention is planned for these maxima.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;        // includes num_verified
  int max_seq_len = INT32_MAX;  // keys of a sequence on all ranks; excludes key_start

  // token_ids, logits_indices, context_lens and row_faults may be absent. key_start is required if
  // the input key_start is given.
  BatchArrays arrays = {};
  int32_t* num_faults = nullptr;  // [1] rows with a fault; or absent
};

constexpr RankRowArgs GatherRowArgs(const BatchGatherArgs& args) {
  RankRowArgs rows;
  rows.table = args.table;
  rows.null_blocks = args.null_blocks;
  rows.past_limit = args.past_limit;
  rows.part = args.part;
  rows.key_positions = args.key_positions;
  rows.write_window = args.write_window;
  rows.max_context_len = args.max_seq_len;
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = args.max_query_len;
  rows.arrays = args.arrays;
  return PrepareRows(rows);
}

constexpr int NumLiveRows(const BatchGatherArgs& args) {
  if (!args.num_live_rows) return args.num_rows;
  const int32_t count = *args.num_live_rows;
  return count < 0 ? 0 : (count < args.num_rows ? count : args.num_rows);
}

// REQUIRES: 0 <= r < NumLiveRows(args).
REPRISE_HOST_DEVICE constexpr RowRequest GatherRequest(const BatchGatherArgs& args, int r) {
  RowRequest request;
  const int32_t table_row = args.table_row[r];
  const int64_t num_listed = args.query_lens[r];
  const int64_t query_len = num_listed < 0 ? num_listed : num_listed + args.num_verified;
  if (table_row < 0 || query_len == 0) return request;
  request.is_padded = false;
  request.table_row = table_row;
  if (!HasTableRow(args.table, table_row)) return request;
  const int64_t seq_len = args.table_seq_lens ? args.table_seq_lens[table_row] : args.seq_lens[r];
  request.context_len = seq_len - CountedTokens(args.seq_len_form, 1, query_len - 1);
  request.query_len = query_len;
  request.key_start = args.key_start ? args.key_start[r] : 0;
  return request;
}

// Returns row r after CheckRow(), which checks its lengths but not its blocks.
// REQUIRES: num_live_rows is NumLiveRows(args).
REPRISE_HOST_DEVICE constexpr CheckedRow GatheredRow(const BatchGatherArgs& args,
                                                     const RankRowArgs& rows, int num_live_rows,
                                                     int r) {
  return r < num_live_rows ? CheckRow(rows, GatherRequest(args, r)) : CheckedRow();
}

// Returns the id of the i-th new token of row r.
REPRISE_HOST_DEVICE constexpr int32_t GatheredTokenId(const BatchGatherArgs& args, int r,
                                                      int32_t table_row, int i) {
  if (!args.arrays.token_ids) return 0;
  if (args.first_token) {
    if (i == 0) return args.first_token[table_row];
    --i;
  }
  return args.tokens ? args.tokens[r * args.token_stride + i] : 0;
}

// Writes a row that GatheredRow() returned. `start` is the number of tokens of all previous rows.
// Returns the row's fault.
template <typename Lanes>
REPRISE_HOST_DEVICE RowFault WriteGatheredRow(const Lanes& lanes, const BatchGatherArgs& args,
                                              const RankRowArgs& rows, int r, const CheckedRow& row,
                                              int64_t start) {
  return WritePlacedRow(lanes, rows, r, row, start,
                        [&](int i) { return GatheredTokenId(args, r, row.table_row, i); });
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_
