// Random shapes of attention calls, that no kernel is tuned for: what attention_bench --random times.
//
//   for (const RandomShape& shape : RandomShapes(7, 40)) ...   // 10 of each kind
//
// Lengths are drawn evenly on a logarithmic scale, so short and long ones are equally frequent. The
// same seed and count give the same shapes on every machine.

#ifndef TESTS_BENCHMARKS_DEVICE_RANDOM_SHAPES_H_
#define TESTS_BENCHMARKS_DEVICE_RANDOM_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace reprise {

enum class ShapeKind : int8_t {
  kDecode,   // 1 to 256 rows of one query
  kVerify,   // 1 to 128 rows of 2 to 8 queries, the same number in each
  kPrefill,  // 1 to 8 prompts, half of them after keys that are there already
  kMixed,    // 1 to 128 decodes and 1 to 3 prompts, which are the last rows
};

inline constexpr int kNumShapeKinds = 4;

// "decode", "verify", "prefill", "mixed".
const char* ShapeKindName(ShapeKind kind);

struct RandomShape {
  ShapeKind kind = ShapeKind::kDecode;
  int num_q_heads = 0;   // 1 to 8 for each KV head
  int num_kv_heads = 0;  // 1 to 16
  int head_dim = 0;      // 64 or 128, of q, K and V
  int block_size = 0;    // 16, 32, 64 or 128
  // Per row: keys, and queries, which are the last keys: 1 <= query_lens[r] <= lens[r].
  std::vector<int> lens = {};
  std::vector<int> query_lens = {};

  // Such as "verify 14/2 d64 p32 7 x 3 of 5120": heads, head_dim, page, rows, queries, keys in all.
  std::string Name() const;
};

// `count` shapes; the kinds take turns. In all rows of a shape there are at most 2^18 keys and 2^14
// queries, so that a cache is at most 2 GiB in 16 bits.
std::vector<RandomShape> RandomShapes(uint64_t seed, int count);

// How ratios are distributed. All zero for none.
struct RatioSummary {
  int count = 0;
  double least = 0;
  double median = 0;
  double nine_tenths = 0;  // 90 % of the ratios are at most this
  double most = 0;
};

RatioSummary Summarize(std::vector<double> ratios);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_RANDOM_SHAPES_H_
