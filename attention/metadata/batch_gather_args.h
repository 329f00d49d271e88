// Arguments of the plain builder, and how it requests a row; shared by the host and device forms
// (attention/metadata/batch_gather.h).

#ifndef REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_
#define REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_rows.h"
#include "reprise/base/host_device.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// The conventions of what a sequence length counts, and conversions between them (S14).
//
//   form              SGLang, vLLM                        a row of 10 cached tokens with 1 + 3 new
//   kBeforeStep       num_computed_tokens                 10  nothing of this step
//   kWithoutDrafts    seq_lens of a verify batch          11  the certain token, not the drafts
//   kWithStep         cache_seqlens; PagedBatch.seq_lens  14  all tokens of this step
//
//   int seq_len = ConvertSeqLen(11, SeqLenForm::kWithoutDrafts, SeqLenForm::kWithStep,
//                               /*num_certain=*/1, /*num_drafts=*/3);   // 14
//
// An inert row has length 0 in all of them: it stays 0.
enum class SeqLenForm {
  kBeforeStep,
  kWithoutDrafts,
  kWithStep,
};

// Tokens of this step that a form counts.
constexpr int64_t CountedTokens(SeqLenForm form, int64_t num_certain, int64_t num_drafts) {
  switch (form) {
    case SeqLenForm::kBeforeStep:
      return 0;
    case SeqLenForm::kWithoutDrafts:
      return num_certain;
    case SeqLenForm::kWithStep:
      return num_certain + num_drafts;
  }
  return 0;
}

// A row without tokens of this step is inert, and its length is 0. A length that is too small for
// its form gives a negative result, which the builders refuse.
constexpr int64_t ConvertSeqLen(int64_t seq_len, SeqLenForm from, SeqLenForm to,
                                int64_t num_certain, int64_t num_drafts) {
  if (num_certain + num_drafts == 0) return 0;
  return seq_len - CountedTokens(from, num_certain, num_drafts) +
         CountedTokens(to, num_certain, num_drafts);
}

struct BatchGatherArgs {
  // table_row, query_lens and seq_lens: [num_rows], of which the first num_live_rows are used.
  const int32_t* table_row = nullptr;
  const int32_t* query_lens = nullptr;
  const int32_t* seq_lens = nullptr;
  // [num_rows] index of the sequence's first token in its table row, as in BatchSequence; absent:
  // 0.
  const int32_t* key_start = nullptr;
  const int32_t* num_live_rows = nullptr;  // [1], clamped to 0 .. num_rows; absent: num_rows
  SeqLenForm seq_len_form = SeqLenForm::kWithStep;
  BlockTableView table = {};
  // Each sequence writes only this many of its last new tokens; 0: all. For prefills whose
  // attention runs over contiguous keys (RaggedBatch) and whose layers have a window of this many
  // tokens. If attention reads the cache, the first queries miss their keys.
  int write_window = 0;

  // The shape of the result, constant under capture. A row with more queries than max_query_len or more keys than
  // max_seq_len has a fault: attention is planned for no more.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;

  // token_ids, logits_indices and row_faults may be absent; key_start is present if the input
  // key_start is.
  BatchArrays arrays = {};
  int32_t* num_faults = nullptr;  // [1] rows with a fault; or absent
};

// Blocks of new tokens may be null, for example because the window has passed them; keys of null blocks are not
// written.
constexpr RowArgs GatherRowArgs(const BatchGatherArgs& args) {
  RowArgs rows;
  rows.table = args.table;
  rows.null_blocks = NullBlocks::kAllowed;
  rows.write_window = args.write_window;
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
  const int64_t query_len = args.query_lens[r];
  if (query_len == 0) return request;
  request.is_padded = false;
  request.table_row = args.table_row[r];
  request.context_len =
      int64_t{args.seq_lens[r]} - CountedTokens(args.seq_len_form, 1, query_len - 1);
  request.query_len = query_len;
  request.key_start = args.key_start ? args.key_start[r] : 0;
  return request;
}

// Returns a row, checked against its lengths only. REQUIRES: 0 <= r < NumLiveRows(args).
REPRISE_HOST_DEVICE constexpr CheckedRow GatheredRow(const BatchGatherArgs& args,
                                                     const RowArgs& rows, int r) {
  CheckedRow row = CheckRow(rows, GatherRequest(args, r));
  // RowArgs::max_context_len would limit key_start too.
  if (int64_t{row.context_len} + row.query_len > args.max_seq_len) {
    row = {};
    row.fault = RowFault::kLength;
  }
  return row;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_GATHER_ARGS_H_
