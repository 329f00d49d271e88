// Which keys a query sees, and at which positions: the rules of attention/paged_batch.h as code,
// one row at a time.
//
//   BatchRow row = RowOf(batch, r);
//   for (VisibleKey key : VisibleKeys(layer, row, /*query=*/0, /*q_head=*/0)) {
//     // key.local: index in the row's seq_len keys; key.position: its position
//   }
//
// The reference and the tests of builders call VisibleKeys(); it is simple rather than fast. The
// CPU path computes whole intervals with KeyInterval() and calls KeyPosition() only for rows whose
// keys are not an interval.
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

// A row with the batch's absent arrays resolved.
struct BatchRow {
  int first_token = 0;  // of q and out
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

// Reads the arrays of the batch at `row`. For a row without keys it reads only the queries: the
// other elements may be garbage, and the result has the defaults. REQUIRES: 0 <= row < num_rows;
// host pointers.
BatchRow RowOf(const PagedBatch& batch, int row);
BatchRow RowOf(const RaggedBatch& batch, int row);

// p(i) of the contract. REQUIRES: 0 <= query < query_len.
int64_t QueryPosition(const BatchRow& row, int query);

// P(l) of the contract if `query` of `q_head` sees local key `key`; nullopt if it does not.
// REQUIRES: 0 <= query < query_len, 0 <= key < seq_len. q_head matters only to sparse patterns.
std::optional<int64_t> KeyPosition(const AttentionParams& layer, const BatchRow& row, int query,
                                   int q_head, int key);

struct VisibleKey {
  int local;         // 0 .. seq_len - 1
  int64_t position;  // P(local)

  friend bool operator==(const VisibleKey&, const VisibleKey&) = default;
};

// All keys that `query` of `q_head` sees, in the order of the table. O(seq_len).
std::vector<VisibleKey> VisibleKeys(const AttentionParams& layer, const BatchRow& row, int query,
                                    int q_head);

// Local keys [begin, end), empty if begin == end.
struct KeyRange {
  int begin = 0;
  int end = 0;

  bool empty() const { return begin == end; }
  friend bool operator==(const KeyRange&, const KeyRange&) = default;
};

// The smallest interval that can be computed without checking single keys and contains every key
// that `query` sees. If IsInterval(), it contains no other keys. O(1).
KeyRange KeyInterval(const AttentionParams& layer, const BatchRow& row, int query);

// Whether the keys that a query of this row sees are always one interval: no tail, no custom mask,
// no sparse pattern.
bool IsInterval(const AttentionParams& layer, const BatchRow& row);

// Position of ordinary (not tail) local key `key`: P(l) of the contract's first two lines.
int64_t OrdinaryKeyPosition(const BatchRow& row, int64_t key);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_VISIBILITY_H_
