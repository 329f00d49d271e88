// The keys that a query sees, and their positions: the rules of attention/paged_batch.h as code,
// one row at a time.
//
//   BatchRow row = RowOf(batch, r);
//   for (VisibleKey key : VisibleKeys(layer, row, /*query=*/0, /*q_head=*/0)) {
//     // key.local: index in the row's seq_len keys; key.position: its position
//   }
//
// VisibleKeys() is simple rather than fast; the reference and tests call it. The CPU path computes
// whole intervals with KeyInterval(), and calls KeyPosition() only for rows whose visible keys are
// not an interval.
//
// Pure functions of host data. Thread safety: const data.

#ifndef REPRISE_ATTENTION_VISIBILITY_H_
#define REPRISE_ATTENTION_VISIBILITY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"

namespace reprise {

// A row. Absent arrays of the batch are replaced by their defaults.
struct BatchRow {
  int first_token = 0;  // row of q and out
  int query_len = 0;
  int seq_len = 0;
  int64_t key_start = 0;  // in the table row; 0 in ragged batches
  int table_row = 0;      // the row itself in ragged batches
  int first_key = 0;      // row of k and v; ragged batches only
  int tail_len = 0;
  const int32_t* query_positions = nullptr;  // [query_len], or absent
  const uint64_t* tail_mask = nullptr;       // [query_len], or absent
  const uint8_t* custom_mask = nullptr;      // [query_len * seq_len] bits, or absent
  KeyPositions key_positions = {};
  bool causal = true;
};

// Reads the arrays of the batch at `row`. For a row without keys in a paged batch, only
// query_start_loc and seq_lens are read (other elements may be garbage), and the other fields have
// defaults. REQUIRES: 0 <= row < num_rows; host pointers.
BatchRow RowOf(const PagedBatch& batch, int row);
BatchRow RowOf(const RaggedBatch& batch, int row);

// The position p(i) of attention/paged_batch.h. REQUIRES: 0 <= query < query_len.
int64_t QueryPosition(const BatchRow& row, int query);

// The position P(l) of local key `key` if `query` of `q_head` sees it; otherwise nullopt. REQUIRES:
// 0 <= query < query_len, 0 <= key < seq_len. q_head only affects sparse patterns.
std::optional<int64_t> KeyPosition(const AttentionParams& layer, const BatchRow& row, int query,
                                   int q_head, int key);

struct VisibleKey {
  int local;         // 0 .. seq_len - 1
  int64_t position;  // P(local)

  friend bool operator==(const VisibleKey&, const VisibleKey&) = default;
};

// All keys that `query` of `q_head` sees, in table order. Cost: O(seq_len).
std::vector<VisibleKey> VisibleKeys(const AttentionParams& layer, const BatchRow& row, int query,
                                    int q_head);

// Local keys [begin, end); empty if begin == end.
struct KeyRange {
  int begin = 0;
  int end = 0;

  bool empty() const { return begin == end; }
  friend bool operator==(const KeyRange&, const KeyRange&) = default;
};

// An interval that contains every key that `query` sees, from causality and window alone: it
// contains all tail keys, and ignores custom masks and sparse patterns. If IsInterval(), the query
// sees all its keys. Cost: O(1).
KeyRange KeyInterval(const AttentionParams& layer, const BatchRow& row, int query);

// Whether the visible keys of every query of this row are an interval: no tail, no custom mask, no
// sparse pattern.
bool IsInterval(const AttentionParams& layer, const BatchRow& row);

// Position P(l) of local key `key` that is not a tail key, in ordinary or context-parallel batches.
int64_t OrdinaryKeyPosition(const BatchRow& row, int64_t key);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_VISIBILITY_H_
