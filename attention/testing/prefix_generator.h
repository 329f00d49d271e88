// Random batches whose rows share some of their first blocks, for tests of common prefixes.

#ifndef REPRISE_ATTENTION_TESTING_PREFIX_GENERATOR_H_
#define REPRISE_ATTENTION_TESTING_PREFIX_GENERATOR_H_

#include <algorithm>
#include <cstdint>

#include "reprise/attention/merge/common_prefix_args.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

struct PrefixShape {
  int num_rows = 4;
  int max_blocks = 10;
  int block_size = 4;
};

inline PrefixShape DrawPrefixShape(Random& random) {
  return {.num_rows = random.Int(0, 6),
          .max_blocks = random.Pick({1, 3, 10, 70}),
          .block_size = random.Pick({1, 2, 5, 16, 32})};
}

inline CommonPrefixArgs CarvePrefix(const PrefixShape& shape, ArrayCarver& carver) {
  CommonPrefixArgs args;
  args.batch = {.query_start_loc = carver.Take<int32_t>("query_start_loc", shape.num_rows + 1),
                .seq_lens = carver.Take<int32_t>("seq_lens", shape.num_rows),
                .table_row = carver.Take<int32_t>("table_row", shape.num_rows),
                .key_start = carver.Take<int32_t>("key_start", shape.num_rows),
                .block_table = carver.Take<int32_t>(
                    "block_table", int64_t{shape.num_rows} * (shape.max_blocks + 1)),
                .block_table_stride = shape.max_blocks + 1,
                .num_rows = shape.num_rows,
                .num_tables = shape.num_rows,
                .max_blocks = shape.max_blocks};
  args.block_size = shape.block_size;
  args.common_prefix_len = carver.Take<int32_t>("common_prefix_len", 1);
  args.scratch = carver.Take<uint32_t>("scratch", 2);
  return args;
}

// `hostility` is the probability that a length, a start or a table row is invalid.
inline void DrawPrefix(Random& random, const PrefixShape& shape, double hostility,
                       CommonPrefixArgs& args) {
  const auto hostile = [&] { return hostility > 0 && random.Real(0, 1) < hostility; };
  const auto put = [&](const int32_t* array, int r, int32_t value) {
    const_cast<int32_t*>(array)[r] =
        hostile() ? random.Pick({-3, INT32_MIN, INT32_MAX, 1 << 30, 7}) : value;
  };
  const int capacity = shape.max_blocks * shape.block_size;
  const int shared_blocks = random.Int(0, shape.max_blocks);
  const int key_start = random.OneIn(3) ? random.Int(0, capacity / 2) : 0;
  int first = 0;
  for (int r = 0; r < shape.num_rows; ++r) {
    put(args.batch.query_start_loc, r, first);
    const int longest = capacity - key_start;
    const int seq_len = random.OneIn(6) ? 0
                        : random.OneIn(2)
                            ? longest - random.Int(0, std::min(longest, shape.block_size))
                            : random.Int(0, longest);
    const int query_len = random.OneIn(6) ? 0 : std::min(seq_len, random.Pick({1, 1, 5}));
    first += query_len;
    put(args.batch.seq_lens, r, seq_len);
    put(args.batch.table_row, r, shape.num_rows - 1 - r);
    put(args.batch.key_start, r, key_start);
    for (int column = 0; column <= shape.max_blocks; ++column) {
      const bool is_shared = column < shared_blocks || random.OneIn(20);
      const_cast<int32_t*>(args.batch.block_table)[r * args.batch.block_table_stride + column] =
          is_shared ? 1 + column : 1000 + r * 1000 + column;
    }
  }
  put(args.batch.query_start_loc, shape.num_rows, first);
  args.scratch[0] = args.scratch[1] = 0;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_PREFIX_GENERATOR_H_
