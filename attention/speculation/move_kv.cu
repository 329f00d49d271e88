// Moves keys and values. A thread processes the same few elements of a token in all moves of a row,
// in order. An element that one move reads and another move writes therefore belongs to one thread,
// and no thread waits for another thread.
//
// Grid: x is the row, y the layer, z K or V (or the rope part). The threads of a CTA are
// distributed over the elements of a token, with 16 bytes per thread if strides and addresses allow
// it, and one element otherwise.
//
// Bound: latency of a load and a store per move, and bytes: 256 rows with 4 moves of 4 KB in 32
// layers are 2 * 134 MB. A row without a move only reads its move list.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/speculation/move_kv.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kWideBytes = 16;

template <typename Unit>
__device__ void MoveRow(const MoveKvArgs& args, const MovePart& part, char* data, int row,
                        int elements_of_unit) {
  const int units_of_head = part.head_dim / elements_of_unit;
  const int num_units = args.num_heads * units_of_head;
  const int64_t* from_row = args.move_from + row * args.row_stride;
  const int64_t* to_row = args.move_to + row * args.row_stride;
  for (int unit = threadIdx.x; unit < num_units; unit += kThreads) {
    const int head = unit / units_of_head;
    const int dim = unit % units_of_head * elements_of_unit;
    const auto at = [&](int64_t slot) {
      return reinterpret_cast<Unit*>(data + MoveOffset(part, args.block_size, slot, head, dim) *
                                                args.element_bytes);
    };
    for (int move = 0; move < args.max_moves; ++move) {
      const int64_t from = from_row[move];
      const int64_t to = to_row[move];
      if (IsMove(args, from, to)) *at(to) = *at(from);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    MoveKvKernel(const __grid_constant__ MoveKvArgs args, const int wide_parts) {
  const int row = static_cast<int>(blockIdx.x);
  const int layer = static_cast<int>(blockIdx.y);
  const bool is_v = blockIdx.z != 0;
  const MovePart& part = is_v ? args.v : args.k;
  auto* data = static_cast<char*>(is_v ? args.v_data[layer] : args.k_data[layer]);
  if ((wide_parts >> blockIdx.z & 1) != 0) {
    MoveRow<uint4>(args, part, data, row, kWideBytes / args.element_bytes);
  } else if (args.element_bytes == 1) {
    MoveRow<uint8_t>(args, part, data, row, 1);
  } else if (args.element_bytes == 2) {
    MoveRow<uint16_t>(args, part, data, row, 1);
  } else if (args.element_bytes == 4) {
    MoveRow<uint32_t>(args, part, data, row, 1);
  } else {
    MoveRow<uint64_t>(args, part, data, row, 1);
  }
}

// Returns whether the elements of a head can be moved 16 bytes at a time in all layers.
bool IsWide(const MoveKvArgs& args, const MovePart& part, void* const* data) {
  const int64_t elements = kWideBytes / args.element_bytes;
  const KvView& view = part.view;
  for (int64_t stride : {view.block_stride, view.token_stride, view.head_stride,
                         static_cast<int64_t>(part.head_dim), static_cast<int64_t>(view.dim_chunk),
                         view.dim_chunk < part.head_dim ? view.dim_chunk_stride : 0}) {
    if (stride % elements != 0) return false;
  }
  for (int layer = 0; layer < args.num_layers; ++layer) {
    if (reinterpret_cast<uintptr_t>(data[layer]) % kWideBytes != 0) return false;
  }
  return true;
}

}  // namespace

absl::Status LaunchMoveKv(const MoveKvArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckMoveKv(args));
  if (args.num_rows == 0 || args.max_moves == 0) return absl::OkStatus();
  const int wide_parts = (IsWide(args, args.k, args.k_data) ? 1 : 0) |
                         (!args.v_within_k && IsWide(args, args.v, args.v_data) ? 2 : 0);
  const dim3 grid(args.num_rows, args.num_layers, args.v_within_k ? 1 : 2);
  MoveKvKernel<<<grid, kThreads, 0, stream>>>(args, wide_parts);
  return CudaStatus(cudaGetLastError(), "LaunchMoveKv");
}

}  // namespace reprise
