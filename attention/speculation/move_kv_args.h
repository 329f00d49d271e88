// Arguments of MoveKv. Shared by the host and device forms (attention/speculation/move_kv.h).

#ifndef REPRISE_ATTENTION_SPECULATION_MOVE_KV_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_MOVE_KV_ARGS_H_

#include <cstdint>

#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Maximum number of layers per launch. The addresses of the layers are kernel arguments, which are
// limited to 4 KB.
inline constexpr int kMaxMoveLayers = 160;

// The layout of K, V or the rope part, which all layers share, and its dims.
struct MovePart {
  KvView view = {};  // data is not used
  int head_dim = 0;
};

struct MoveKvArgs {
  MovePart k = {};
  MovePart v = {};
  // V is part of K's dims, as in MLA, and moves with K.
  bool v_within_k = false;
  int element_bytes = 0;
  int num_heads = 0;
  int block_size = 0;
  int num_blocks = 0;
  int num_layers = 0;
  void* k_data[kMaxMoveLayers] = {};
  void* v_data[kMaxMoveLayers] = {};

  // [num_rows, row_stride] slots; a move with a slot outside the cache, such as -1, is skipped.
  const int64_t* move_from = nullptr;
  const int64_t* move_to = nullptr;
  int64_t row_stride = 0;
  int num_rows = 0;
  int max_moves = 0;  // per row
};

constexpr bool IsMove(const MoveKvArgs& args, int64_t from, int64_t to) {
  const int64_t num_slots = static_cast<int64_t>(args.num_blocks) * args.block_size;
  return from >= 0 && from < num_slots && to >= 0 && to < num_slots && from != to;
}

// Returns the offset of element (slot, head, dim), in elements.
constexpr int64_t MoveOffset(const MovePart& part, int block_size, int64_t slot, int head,
                             int dim) {
  return part.view.Offset(slot / block_size, slot % block_size, head, dim);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_MOVE_KV_ARGS_H_
