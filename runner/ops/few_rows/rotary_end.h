// How the product with a layer's weight of q, k and v may end, of few rows of x: q and k are rotated,
// and k and v written into the cache, as by LaunchRotary() (runner/ops/rotary_args.h), to the same
// bits. For caches of x's 16-bit type without scales, whose heads are whole, and embeddings of all
// dims. No CUDA, no LibTorch.
//
// Such a product takes the rows of its weight in pairs of 8: dims d .. d + 7 of a head, and those
// head_dim / 2 further on, which are rotated with them. V's, which are not, too.

#ifndef RUNNER_OPS_FEW_ROWS_ROTARY_END_H_
#define RUNNER_OPS_FEW_ROWS_ROTARY_END_H_

#include <cstdint>
#include <optional>

#include "base/host_device.h"
#include "cache/ops/kv_tokens.h"
#include "cache/storage/kv_layer.h"
#include "runner/ops/rotary_args.h"

namespace reprise {

struct RotaryEnd {
  int head_dim = 0;  // of q, k and v, a multiple of 16; 0: the product has no such end
  int num_q_heads = 0;
  int num_kv_heads = 0;
  const int32_t* positions = nullptr;  // [num_rows]; those beyond the table count as the nearest
  const float* table = nullptr;        // [max_positions, head_dim] cosines, then sines
  int max_positions = 0;
  const int64_t* slot_mapping = nullptr;  // [num_slots]; outside of the cache: not written
  int num_slots = 0;                      // of the first rows
  KvView k;                               // of the cache
  KvView v;
  SlotPlaces places;

  REPRISE_HOST_DEVICE bool is_on() const { return head_dim > 0; }
  REPRISE_HOST_DEVICE int num_heads() const { return num_q_heads + 2 * num_kv_heads; }
  // Pairs of 8 rows of a head.
  REPRISE_HOST_DEVICE int num_pieces() const { return head_dim / 16; }
};

// The end of a product whose results are q, k and v of `args`, side by side in rows of memory; null if
// it cannot have it. args as RotaryWriteKv() checks them.
std::optional<RotaryEnd> RotaryEndOf(const RotaryArgs& args);

}  // namespace reprise

#endif  // RUNNER_OPS_FEW_ROWS_ROTARY_END_H_
