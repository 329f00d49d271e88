// Arguments of LaunchKeepStates() (runner/speculation/keep_states.h), and the selection of a row's
// states, which the host and device forms share.

#ifndef REPRISE_RUNNER_SPECULATION_KEEP_STATES_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_KEEP_STATES_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "reprise/base/host_device.h"

namespace reprise {

struct KeepStatesArgs {
  // [num_hidden, row_bytes] per token; with last_token, indexed by `place`
  const std::byte* hidden = nullptr;
  int num_hidden = 0;
  int64_t row_bytes = 0;  // a multiple of 2
  // Arrays of a step or a draft pass (StepArrays). A row whose table_row is out of range keeps
  // no state.
  const int32_t* positions = nullptr;        // [num_tokens]
  const int32_t* table_row = nullptr;        // [num_rows]
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1] read only if last_token is null
  // [num_rows] token index. If given, each row with a non-negative sample_slot has one state: this
  // token's.
  const int32_t* last_token = nullptr;
  const int32_t* sample_slot = nullptr;  // [num_rows] read with last_token
  // [num_rows] read with last_token: row of `hidden`; null: the row's index
  const int32_t* place = nullptr;
  int num_tokens = 0;                  // padded
  int num_rows = 0;                    // padded
  std::byte* states = nullptr;         // [num_slots, num_kept, row_bytes]
  int32_t* state_positions = nullptr;  // [num_slots, num_kept]
  int num_slots = 0;
  int num_kept = 0;  // states per slot
};

struct KeptState {
  const std::byte* from = nullptr;  // null: no state is kept
  std::byte* to = nullptr;
  int32_t* position_to = nullptr;
  int32_t position = 0;
};

// Maximum number of states that are kept per row.
constexpr int MaxStatesOfRow(const KeepStatesArgs& args) {
  if (args.last_token != nullptr) return 1;
  return args.num_kept < args.num_tokens ? args.num_kept : args.num_tokens;
}

// Returns the state of the row's `i`-th token counted from its end, with i in [0,
// MaxStatesOfRow()). Different i write to different addresses, because the positions of a row are
// consecutive.
REPRISE_HOST_DEVICE constexpr KeptState KeptStateOf(const KeepStatesArgs& args, int row_idx,
                                                    int i) {
  const int32_t slot = args.table_row[row_idx];
  if (slot < 0 || slot >= args.num_slots) return {};
  const bool is_one = args.last_token != nullptr;
  if (is_one && args.sample_slot[row_idx] < 0) return {};
  const int32_t token =
      is_one ? args.last_token[row_idx] : args.query_start_loc[row_idx + 1] - 1 - i;
  const int32_t first = is_one ? 0 : args.query_start_loc[row_idx];
  const int32_t from = !is_one ? token : args.place == nullptr ? row_idx : args.place[row_idx];
  if (token < first || token < 0 || token >= args.num_tokens) return {};
  if (from < 0 || from >= args.num_hidden) return {};
  const int32_t position = args.positions[token];
  if (position < 0) return {};
  const int64_t to = int64_t{slot} * args.num_kept + position % args.num_kept;
  return {args.hidden + from * args.row_bytes, args.states + to * args.row_bytes,
          args.state_positions + to, position};
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_KEEP_STATES_ARGS_H_
