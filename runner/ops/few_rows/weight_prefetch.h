// What a product's kernel reads of its weight first: the kernel before it may
// bring that into the L2 cache while it ends, when its own copies are under way
// and the memory would idle until the next kernel's are. For host and device;
// no CUDA, no LibTorch.

#ifndef RUNNER_OPS_FEW_ROWS_WEIGHT_PREFETCH_H_
#define RUNNER_OPS_FEW_ROWS_WEIGHT_PREFETCH_H_

#include <algorithm>
#include <cstdint>

#include "base/host_device.h"

namespace reprise {

// The first `row_bytes` bytes of part_rows rows from FirstRow(part) on, for
// each of num_parts parts.
struct WeightPrefetch {
  const void *data = nullptr; // of the weight; null: nothing is prefetched
  int64_t stride = 0;         // bytes from row to row
  int64_t pair_distance =
      0; // if not 0: also the rows that are so many rows further on
  int num_rows =
      0; // that parts are taken from; none begins or ends beyond them
  int num_parts = 0;
  int num_units = 0; // part p begins with unit num_units * p / num_parts, of
                     // unit_rows rows each
  int unit_rows = 0;
  int part_rows = 0;
  int row_bytes = 0; // a multiple of kPrefetchLine

  REPRISE_HOST_DEVICE int FirstRow(int part) const {
    return static_cast<int>(int64_t{num_units} * part / num_parts) * unit_rows;
  }
};

inline constexpr int kPrefetchLine = 128;

// What the memory reads from the last copy of a product to the first of the
// next, about.
inline constexpr int64_t kPrefetchBytes = int64_t{12} << 20;

// The bytes of a row of which `total_rows` make about `bytes`: a multiple of
// kPrefetchLine, at most those of `row_bytes` that fill whole lines.
inline int PrefetchedRowBytes(int64_t bytes, int64_t total_rows,
                              int64_t row_bytes) {
  const int64_t lines = std::max<int64_t>(
      1, bytes / std::max<int64_t>(1, total_rows) / kPrefetchLine);
  return static_cast<int>(std::min(lines, row_bytes / kPrefetchLine) *
                          kPrefetchLine);
}

} // namespace reprise

#endif // RUNNER_OPS_FEW_ROWS_WEIGHT_PREFETCH_H_
