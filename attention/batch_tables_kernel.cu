// Tables of a batch's own rows: each CTA sums the blocks of all rows, then its warps copy some of
// them.
//
// Summing is done by every CTA for itself, which costs less than a second launch or a grid-wide
// barrier. CTA 0 writes what is one a row. A row is copied by a warp, 32 entries at a time.
//
// Bound: latency for decode batches (two loads, a scan, a load and a store); for long rows the
// bytes of the entries, spread over up to 132 CTAs.

#include "attention/batch_tables_kernel.h"
#include "attention/cta_scan.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;  // and rows of a round
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCtas = 132;

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  int num_bad;
  int32_t first_index[kThreads];
  int32_t table_row[kThreads];
  int32_t first_column[kThreads];
  int32_t num_blocks[kThreads];
};

struct RowRead {
  TableRow row;
  int32_t table_row = 0;
  bool bad = false;
};

__device__ RowRead ReadRow(const PagedBatch& batch, const BlockTableView& table, int r,
                           const TableSelection& selection, const DeviceTables& out) {
  RowRead read;
  const bool all = selection.blocks == TableBlocks::kSeqLen;
  const int32_t query_len = all ? 0 : batch.query_start_loc[r + 1] - batch.query_start_loc[r];
  const int32_t seq_len = batch.seq_lens[r];
  read.table_row = batch.table_row ? batch.table_row[r] : r;
  read.row = TableRowOf(seq_len, query_len, table.block_size, selection);
  read.bad = seq_len < 0 || (seq_len > 0 && (query_len < 0 || query_len > seq_len));
  if (read.row.num_blocks > 0) {
    read.bad |= read.table_row < 0 || read.table_row >= table.num_tables ||
                read.row.first_column + read.row.num_blocks > table.max_blocks ||
                (out.entries && read.row.num_blocks > out.max_blocks);
  }
  if (read.bad) read.row = TableRow();
  return read;
}

// Copies a row's entries to the padded and the packed form; by a warp.
__device__ void CopyRow(const int32_t* source, int num_blocks, int32_t* padded, int max_blocks,
                        int32_t* packed) {
  const int lane = threadIdx.x % 32;
  for (int column = lane; column < num_blocks; column += 32) {
    const int32_t entry = source[column];
    if (padded) padded[column] = entry;
    if (packed) packed[column] = entry;
  }
  if (!padded) return;
  for (int column = num_blocks + lane; column < max_blocks; column += 32) padded[column] = 0;
}

__global__ void __launch_bounds__(kThreads)
    GatherTablesKernel(const PagedBatch batch, const BlockTableView table,
                       const TableSelection selection, const DeviceTables out) {
  __shared__ SharedRows shared;
  if (threadIdx.x == 0) shared.num_bad = 0;
  int64_t num_indices = 0;
  int64_t num_keys = 0;
  bool is_full = false;
  for (int round = 0; round < batch.num_rows; round += kThreads) {
    const int r = round + threadIdx.x;
    RowRead read;
    if (r < batch.num_rows) read = ReadRow(batch, table, r, selection, out);
    const auto sums = [&](int64_t* indices, int64_t* keys) {
      const CtaSum<int64_t> of_indices = ExclusiveSum<int64_t>(read.row.num_blocks, shared.scan);
      const CtaSum<int64_t> of_keys = ExclusiveSum<int64_t>(read.row.num_keys, shared.scan);
      *indices = num_indices + of_indices.before;
      *keys = num_keys + of_keys.before;
      return CtaSum<int64_t>{of_indices.total, of_keys.total};
    };
    if (is_full && read.row.num_blocks > 0) {
      read.bad = true;
      read.row = TableRow();
    }
    int64_t first_index = 0;
    int64_t first_key = 0;
    CtaSum<int64_t> totals = sums(&first_index, &first_key);
    const int64_t most_indices = out.block_indptr ? out.max_indices : INT64_MAX;
    const int64_t most_keys = out.key_start_loc ? INT32_MAX : INT64_MAX;
    const bool fits = first_index + read.row.num_blocks <= most_indices &&
                      first_key + read.row.num_keys <= most_keys;
    if (__syncthreads_or(!fits)) {
      // Rows from the first that does not fit on are left out of the sums.
      is_full = true;
      if (!fits && read.row.num_blocks > 0) {
        read.bad = true;
        read.row = TableRow();
      }
      totals = sums(&first_index, &first_key);
    }
    shared.first_index[threadIdx.x] = static_cast<int32_t>(first_index);
    shared.table_row[threadIdx.x] = read.table_row;
    shared.first_column[threadIdx.x] = read.row.first_column;
    shared.num_blocks[threadIdx.x] = read.row.num_blocks;
    if (blockIdx.x == 0 && r < batch.num_rows) {
      if (read.bad) atomicAdd(&shared.num_bad, 1);
      if (out.entries) out.seq_lens[r] = read.row.num_keys;
      if (out.block_indptr) {
        out.block_indptr[r] = static_cast<int32_t>(first_index);
        out.last_block_len[r] = read.row.LastBlockLen(table.block_size);
      }
      if (out.key_start_loc) out.key_start_loc[r] = static_cast<int32_t>(first_key);
    }
    __syncthreads();
    const int in_round = min(kThreads, batch.num_rows - round);
    for (int i = blockIdx.x * kWarps + threadIdx.x / 32; i < in_round; i += gridDim.x * kWarps) {
      const int32_t num_blocks = shared.num_blocks[i];
      const int64_t first = shared.table_row[i] * table.row_stride + shared.first_column[i];
      CopyRow(table.entries + (num_blocks > 0 ? first : 0), num_blocks,
              out.entries ? out.entries + (round + i) * out.row_stride : nullptr, out.max_blocks,
              out.block_indptr ? out.block_indices + shared.first_index[i] : nullptr);
    }
    num_indices += totals.before;
    num_keys += totals.total;
    __syncthreads();
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  if (out.block_indptr) out.block_indptr[batch.num_rows] = static_cast<int32_t>(num_indices);
  if (out.key_start_loc) out.key_start_loc[batch.num_rows] = static_cast<int32_t>(num_keys);
  *out.num_bad_rows = shared.num_bad;
}

__global__ void __launch_bounds__(kThreads)
    UnpackTableKernel(const DevicePackedTable packed, const int block_size,
                      const DeviceTables out) {
  const int lane = threadIdx.x % 32;
  for (int r = blockIdx.x * kWarps + threadIdx.x / 32; r < packed.num_rows;
       r += gridDim.x * kWarps) {
    const int32_t begin = packed.block_indptr[r];
    const int32_t end = packed.block_indptr[r + 1];
    const int32_t last = packed.last_block_len[r];
    bool good =
        begin >= 0 && begin <= end && end <= packed.num_indices && end - begin <= out.max_blocks;
    int64_t num_keys = 0;
    if (good) {
      const int32_t num_blocks = end - begin;
      good = num_blocks == 0 ? last == 0 : (last >= 1 && last <= block_size);
      if (num_blocks > 0) num_keys = static_cast<int64_t>(num_blocks - 1) * block_size + last;
      good = good && num_keys <= INT32_MAX;
    }
    if (!good && lane == 0) atomicAdd(out.num_bad_rows, 1);
    if (lane == 0) out.seq_lens[r] = good ? static_cast<int32_t>(num_keys) : 0;
    CopyRow(packed.block_indices + (good ? begin : 0), good ? end - begin : 0,
            out.entries + r * out.row_stride, out.max_blocks, nullptr);
  }
}

int NumCtas(int num_rows) {
  const int wanted = (num_rows + kWarps - 1) / kWarps;
  return wanted < 1 ? 1 : (wanted < kMaxCtas ? wanted : kMaxCtas);
}

}  // namespace

cudaError_t LaunchGatherTables(const PagedBatch& batch, const BlockTableView& table,
                               const TableSelection& selection, const DeviceTables& out,
                               cudaStream_t stream) {
  const bool needs_queries = selection.blocks != TableBlocks::kSeqLen;
  const bool has_rows =
      batch.seq_lens && table.entries && (!needs_queries || batch.query_start_loc);
  if (batch.num_rows < 0 || (batch.num_rows > 0 && !has_rows) || table.block_size < 1 ||
      selection.window_left < 0 || !out.num_bad_rows || out.max_blocks < 0 || out.max_indices < 0 ||
      (out.entries && !out.seq_lens) ||
      (out.block_indptr && (!out.block_indices || !out.last_block_len))) {
    return cudaErrorInvalidValue;
  }
  GatherTablesKernel<<<NumCtas(batch.num_rows), kThreads, 0, stream>>>(batch, table, selection,
                                                                       out);
  return cudaGetLastError();
}

cudaError_t LaunchUnpackTable(const DevicePackedTable& packed, int block_size,
                              const DeviceTables& out, cudaStream_t stream) {
  const bool has_rows = packed.block_indptr && packed.block_indices && packed.last_block_len &&
                        out.entries && out.seq_lens;
  if (packed.num_rows < 0 || (packed.num_rows > 0 && !has_rows) || block_size < 1 ||
      !out.num_bad_rows || out.max_blocks < 0) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = cudaMemsetAsync(out.num_bad_rows, 0, sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  UnpackTableKernel<<<NumCtas(packed.num_rows), kThreads, 0, stream>>>(packed, block_size, out);
  return cudaGetLastError();
}

}  // namespace reprise
