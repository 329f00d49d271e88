#include "tests/benchmarks/device/random_shapes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr int kMaxKeys = 1 << 18;
constexpr int kMaxQueries = 1 << 14;

// The distributions of the standard library differ between its implementations.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  // least to most, evenly.
  int Int(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<uint64_t>(most - least + 1));
  }

  // least to most, evenly on a logarithmic scale. REQUIRES: least >= 1.
  int Log(int least, int most) {
    const double part = static_cast<double>(engine_() >> 11) * 0x1p-53;
    const double value = least * std::pow(static_cast<double>(most) / least, part);
    return std::clamp(static_cast<int>(std::lround(value)), least, most);
  }

 private:
  std::mt19937_64 engine_;
};

// Adds a row, unless the shape would have too many keys or queries; its first always fits.
void AddRow(int len, int query_len, RandomShape& shape) {
  const int keys = std::accumulate(shape.lens.begin(), shape.lens.end(), len);
  const int queries = std::accumulate(shape.query_lens.begin(), shape.query_lens.end(), query_len);
  if (keys > kMaxKeys || queries > kMaxQueries) return;
  shape.lens.push_back(len);
  shape.query_lens.push_back(query_len);
}

void AddShortRows(int max_rows, int query_len, Draw& draw, RandomShape& shape) {
  const int num_rows = draw.Log(1, max_rows);
  const int longest = draw.Log(256, 32768);
  const bool are_alike = draw.Int(0, 1) == 0;
  for (int r = 0; r < num_rows; ++r) {
    AddRow(are_alike ? longest : draw.Log(64, longest), query_len, shape);
  }
}

void AddPrompts(int most, Draw& draw, RandomShape& shape) {
  const int num_prompts = draw.Int(1, most);
  const bool are_alike = draw.Int(0, 1) == 0;
  const int length = draw.Log(128, 8192);
  for (int r = 0; r < num_prompts; ++r) {
    const int query_len = are_alike ? length : draw.Log(64, 4096);
    const int before = draw.Int(0, 1) == 0 ? 0 : draw.Log(64, 8192);
    AddRow(before + query_len, query_len, shape);
  }
}

RandomShape DrawShape(ShapeKind kind, Draw& draw) {
  RandomShape shape = {.kind = kind};
  constexpr int kKvHeads[] = {1, 2, 3, 4, 6, 8, 8, 16};
  shape.num_kv_heads = kKvHeads[draw.Int(0, 7)];
  shape.num_q_heads = shape.num_kv_heads * draw.Int(1, 8);
  shape.head_dim = draw.Int(0, 2) == 0 ? 64 : 128;
  shape.block_size = 16 << draw.Int(0, 3);
  switch (kind) {
    case ShapeKind::kDecode:
      AddShortRows(256, 1, draw, shape);
      break;
    case ShapeKind::kVerify:
      AddShortRows(128, draw.Int(2, 8), draw, shape);
      break;
    case ShapeKind::kPrefill:
      AddPrompts(8, draw, shape);
      break;
    case ShapeKind::kMixed:
      AddShortRows(128, 1, draw, shape);
      AddPrompts(3, draw, shape);
      break;
  }
  return shape;
}

}  // namespace

const char* ShapeKindName(ShapeKind kind) {
  constexpr const char* kNames[kNumShapeKinds] = {"decode", "verify", "prefill", "mixed"};
  return kNames[static_cast<int>(kind)];
}

std::string RandomShape::Name() const {
  const int queries = std::accumulate(query_lens.begin(), query_lens.end(), 0);
  std::string rows = absl::StrCat(lens.size());
  if (kind == ShapeKind::kVerify) {
    absl::StrAppend(&rows, " x ", query_lens[0]);
  } else if (kind != ShapeKind::kDecode) {
    absl::StrAppend(&rows, ":", queries);
  }
  return absl::StrCat(ShapeKindName(kind), " ", num_q_heads, "/", num_kv_heads, " d", head_dim,
                      " p", block_size, " ", rows, " of ",
                      std::accumulate(lens.begin(), lens.end(), 0));
}

std::vector<RandomShape> RandomShapes(uint64_t seed, int count) {
  Draw draw(seed);
  std::vector<RandomShape> shapes;
  for (int i = 0; i < count; ++i) {
    shapes.push_back(DrawShape(static_cast<ShapeKind>(i % kNumShapeKinds), draw));
  }
  return shapes;
}

RatioSummary Summarize(std::vector<double> ratios) {
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const size_t count = ratios.size();
  return {.count = static_cast<int>(count),
          .least = ratios.front(),
          .median = (ratios[(count - 1) / 2] + ratios[count / 2]) / 2,
          .nine_tenths = ratios[(count * 9 + 9) / 10 - 1],
          .most = ratios.back()};
}

}  // namespace reprise
