// Moves of keys and values: a thread moves the same few elements of a token through all moves of a
// row, in order, so that nobody has to wait: what one move reads and another writes is the same
// thread's.
//
// Grid: x rows, y layers, z K or V. Threads over the elements of a token, 16 bytes each where
// strides and addresses allow, single elements otherwise.
//
// Bound: latency, of a load and a store a move, and bytes: 256 rows with 4 moves of 4 KB in 32
// layers are 2 * 134 MB. Rows without a move end at once.

#include "attention/move_kv_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kWideBytes = 16;

template <typename Unit>
__device__ void MoveRow(const MoveKvParams& params, const MovePart& part, char* data, int row,
                        int elements_of_unit) {
  const int units_of_head = part.head_dim / elements_of_unit;
  const int num_units = params.num_heads * units_of_head;
  const int64_t* from_row = params.move_from + row * params.row_stride;
  const int64_t* to_row = params.move_to + row * params.row_stride;
  for (int unit = threadIdx.x; unit < num_units; unit += kThreads) {
    const int head = unit / units_of_head;
    const int dim = unit % units_of_head * elements_of_unit;
    const auto at = [&](int64_t slot) {
      return reinterpret_cast<Unit*>(data + MoveOffset(part, params.block_size, slot, head, dim) *
                                                params.element_bytes);
    };
    for (int move = 0; move < params.max_moves; ++move) {
      const int64_t from = from_row[move];
      const int64_t to = to_row[move];
      if (IsMove(params, from, to)) *at(to) = *at(from);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    MoveKvKernel(const __grid_constant__ MoveKvParams params, const int wide_parts) {
  const int row = static_cast<int>(blockIdx.x);
  const int layer = static_cast<int>(blockIdx.y);
  const bool is_v = blockIdx.z != 0;
  const MovePart& part = is_v ? params.v : params.k;
  auto* data = static_cast<char*>(is_v ? params.v_data[layer] : params.k_data[layer]);
  if ((wide_parts >> blockIdx.z & 1) != 0) {
    MoveRow<uint4>(params, part, data, row, kWideBytes / params.element_bytes);
  } else if (params.element_bytes == 1) {
    MoveRow<uint8_t>(params, part, data, row, 1);
  } else if (params.element_bytes == 2) {
    MoveRow<uint16_t>(params, part, data, row, 1);
  } else if (params.element_bytes == 4) {
    MoveRow<uint32_t>(params, part, data, row, 1);
  } else {
    MoveRow<uint64_t>(params, part, data, row, 1);
  }
}

// Whether the elements of a head can be moved 16 bytes at a time in all layers.
bool IsWide(const MoveKvParams& params, const MovePart& part, void* const* data) {
  const int64_t elements = kWideBytes / params.element_bytes;
  const KvView& view = part.view;
  for (int64_t stride : {view.block_stride, view.token_stride, view.head_stride,
                         static_cast<int64_t>(part.head_dim), static_cast<int64_t>(view.dim_chunk),
                         view.dim_chunk < part.head_dim ? view.dim_chunk_stride : 0}) {
    if (stride % elements != 0) return false;
  }
  for (int layer = 0; layer < params.num_layers; ++layer) {
    if (reinterpret_cast<uintptr_t>(data[layer]) % kWideBytes != 0) return false;
  }
  return true;
}

}  // namespace

cudaError_t LaunchMoveKv(const MoveKvParams& params, cudaStream_t stream) {
  if (params.num_rows < 0 || params.max_moves < 0 || params.num_layers < 1 ||
      params.num_layers > kMaxMoveLayers || params.block_size < 1 || params.element_bytes < 1 ||
      params.element_bytes > 8) {
    return cudaErrorInvalidValue;
  }
  if (params.num_rows == 0 || params.max_moves == 0) return cudaSuccess;
  const int wide_parts = (IsWide(params, params.k, params.k_data) ? 1 : 0) |
                         (IsWide(params, params.v, params.v_data) ? 2 : 0);
  const dim3 grid(params.num_rows, params.num_layers, params.v_within_k ? 1 : 2);
  MoveKvKernel<<<grid, kThreads, 0, stream>>>(params, wide_parts);
  return cudaGetLastError();
}

}  // namespace reprise
