#include "reprise/attention/testing/row_draws.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace reprise {
namespace {

constexpr int32_t kGarbage[] = {-1, std::numeric_limits<int32_t>::min(),
                                std::numeric_limits<int32_t>::max(), 1 << 30, -77};

// Returns a length near a block boundary, a short length, or any length.
int DrawSeqLen(int least, int longest, int block_size, Random& random) {
  const int border = block_size * random.Int(0, longest / block_size) + random.Int(-1, 1);
  return std::clamp(random.Pick({border, random.Int(1, longest), random.Int(1, 4)}), least,
                    longest);
}

}  // namespace

int32_t Garbage(Random& random) { return kGarbage[random.Int(0, std::size(kGarbage) - 1)]; }

RowLengths DrawRowLengths(const FixtureOptions& options, const FeatureSet& features, int block_size,
                          Random& random) {
  RowLengths rows;
  const int num_live_rows = random.OneIn(40) ? 0 : random.Int(1, options.max_rows);
  const bool decode_only = random.OneIn(3);
  for (int r = 0; r < num_live_rows; ++r) {
    int seq_len = DrawSeqLen(options.min_seq_len, options.max_seq_len, block_size, random);
    int query_len = random.OneIn(3) ? random.Int(1, options.max_query_len) : 1;
    if (decode_only) query_len = 1;
    if (!features.Has(Feature::kLongQueries)) query_len = std::min(query_len, seq_len);
    if (features.Has(Feature::kPaddedRows) && random.OneIn(4)) {
      if (random.OneIn(2)) seq_len = 0;
      query_len = seq_len == 0 && random.OneIn(2) ? 1 : 0;
    }
    rows.query_lens.push_back(query_len);
    rows.seq_lens.push_back(seq_len);
  }
  if (features.Has(Feature::kPaddedRows)) {
    const int query_len = random.Int(0, 1);
    for (int r = random.Int(0, 3); r > 0; --r) {
      rows.query_lens.push_back(query_len);
      rows.seq_lens.push_back(0);
    }
  }
  return rows;
}

std::vector<int32_t> PrefixSums(const std::vector<int>& lengths) {
  std::vector<int32_t> sums = {0};
  for (int length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

CustomMasks DrawCustomMasks(const RowLengths& rows, Random& random) {
  CustomMasks masks;
  masks.offsets.resize(rows.seq_lens.size());
  std::vector<int> order(rows.seq_lens.size());
  for (size_t r = 0; r < order.size(); ++r) order[r] = static_cast<int>(r);
  random.Shuffle(order);
  const auto add_byte = [&] { masks.bytes.push_back(static_cast<uint8_t>(random.Bits())); };
  for (int r : order) {
    if (rows.seq_lens[r] == 0) {
      masks.offsets[r] = Garbage(random);
      continue;
    }
    masks.offsets[r] = -1;
    if (random.OneIn(5)) continue;
    for (int i = random.Int(0, 3); i > 0; --i) add_byte();
    masks.offsets[r] = std::ssize(masks.bytes);
    const int64_t num_bits = int64_t{rows.query_lens[r]} * rows.seq_lens[r];
    for (int64_t byte = 0; byte < (num_bits + 7) / 8; ++byte) add_byte();
    for (int query = 0; query < rows.query_lens[r]; ++query) {
      const int kind = random.Int(0, 3);
      if (kind == 0) continue;  // any keys
      // No key, all keys, or one interval of keys.
      const int begin = kind == 3 ? random.Int(0, rows.seq_lens[r]) : 0;
      const int end = kind == 1   ? 0
                      : kind == 2 ? rows.seq_lens[r]
                                  : random.Int(begin, rows.seq_lens[r]);
      for (int key = 0; key < rows.seq_lens[r]; ++key) {
        const int64_t bit = int64_t{query} * rows.seq_lens[r] + key;
        uint8_t& byte = masks.bytes[masks.offsets[r] + bit / 8];
        byte = static_cast<uint8_t>(byte & ~(1 << bit % 8));
        if (key >= begin && key < end) byte = static_cast<uint8_t>(byte | 1 << bit % 8);
      }
    }
  }
  add_byte();
  return masks;
}

int MaxOf(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// Positions of a row's queries: default, shifted, or any.
std::vector<int32_t> DrawQueryPositions(const BatchRow& row, Random& random) {
  const bool ranked = row.key_positions.world > 1;
  const int64_t end = row.seq_len == 0 ? 0 : OrdinaryKeyPosition(row, row.seq_len - 1) + 1;
  const int64_t shift = ranked ? random.Int(0, 5) : random.Pick({0, 0, random.Int(-3, 5)});
  const bool any = random.OneIn(3);
  std::vector<int32_t> positions;
  for (int i = 0; i < row.query_len; ++i) {
    positions.push_back(any ? random.Int(0, static_cast<int>(end) + 2)
                            : static_cast<int32_t>(end - row.query_len + i + shift));
  }
  return positions;
}

}  // namespace reprise
