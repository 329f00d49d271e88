// Arguments of keeping hidden states (runner/speculation/keep_hidden.h), and the choice of a row's,
// shared by the host and device forms.

#ifndef RUNNER_SPECULATION_KEEP_HIDDEN_ARGS_H_
#define RUNNER_SPECULATION_KEEP_HIDDEN_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace reprise {

struct KeepHiddenArgs {
  const std::byte* hidden = nullptr;  // [num_places, row_bytes] of the step's logits
  int num_places = 0;
  int64_t row_bytes = 0;             // a multiple of 2
  std::byte* slot_hidden = nullptr;  // [num_slots, row_bytes]
  int num_slots = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows]
  const int32_t* place = nullptr;        // [num_rows] may be absent
  int num_rows = 0;                      // padded
};

struct KeptHidden {
  const std::byte* from = nullptr;  // null: nothing is kept
  std::byte* to = nullptr;
};

REPRISE_HOST_DEVICE constexpr KeptHidden KeptHiddenOf(const KeepHiddenArgs& args, int row_idx) {
  const int32_t slot = args.sample_slot[row_idx];
  const int32_t place = args.place == nullptr ? row_idx : args.place[row_idx];
  if (slot < 0 || slot >= args.num_slots || place < 0 || place >= args.num_places) return {};
  return {args.hidden + place * args.row_bytes, args.slot_hidden + slot * args.row_bytes};
}

}  // namespace reprise

#endif  // RUNNER_SPECULATION_KEEP_HIDDEN_ARGS_H_
