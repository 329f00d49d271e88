#include "reprise/attention/testing/visible_set.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

template <typename Batch, typename SlotOf>
VisiblePairs Collect(const AttentionParams& layer, const Batch& batch, SlotOf slot_of) {
  VisiblePairs pairs;
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    for (int i = 0; i < row.query_len && row.seq_len > 0; ++i) {
      // Checks only the interval, because batches of long rows would take too long.
      const KeyRange interval = KeyInterval(layer, row, i);
      for (int key = interval.begin; key < interval.end; ++key) {
        const std::optional<int64_t> position = KeyPosition(layer, row, i, /*q_head=*/0, key);
        if (!position) continue;
        pairs.push_back({.token = row.first_token + i,
                         .query_position = QueryPosition(row, i),
                         .key_position = *position,
                         .slot = slot_of(row, key)});
      }
    }
  }
  if (!std::ranges::is_sorted(pairs)) std::ranges::sort(pairs);
  return pairs;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const VisiblePair& pair) {
  return out << "token " << pair.token << " at " << pair.query_position << " sees slot "
             << pair.slot << " at " << pair.key_position;
}

VisiblePairs VisibleSet(const AttentionParams& layer, const PagedBatch& batch, int block_size) {
  return Collect(layer, batch, [&](const BatchRow& row, int key) {
    const int64_t place = row.key_start + key;
    const int64_t block =
        batch.block_table[row.table_row * batch.block_table_stride + place / block_size];
    return block * block_size + place % block_size;
  });
}

VisiblePairs VisibleSet(const AttentionParams& layer, const RaggedBatch& batch) {
  return Collect(layer, batch,
                 [](const BatchRow& row, int key) { return int64_t{row.first_key} + key; });
}

AttentionParams PlainLayer() {
  return {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 1, .head_dim_v = 1};
}

std::string DifferenceOf(const VisiblePairs& got, const VisiblePairs& expected) {
  const auto [in_got, in_expected] = std::ranges::mismatch(got, expected);
  if (in_got == got.end() && in_expected == expected.end()) return "";
  std::ostringstream text;
  text << "got " << got.size() << " pairs, expected " << expected.size()
       << "; first difference: got ";
  in_got == got.end() ? text << "nothing" : text << *in_got;
  text << ", expected ";
  in_expected == expected.end() ? text << "nothing" : text << *in_expected;
  return text.str();
}

}  // namespace reprise
