// Refill as one CTA: apply the delta to the slots, then gather the step's arrays.
//
// Almost all of its time is latency, a chain that one CTA walks as fast as many: the delta over
// PCIe (one trip: counts, rows and the first updates are asked for at once), then per row its
// slot's length, its table entry, a prefix sum, and stores. A row of one token is done by one
// thread; rows of several tokens, in steps that take milliseconds, go over all threads.
//
// Phases, with a barrier between them:
//   fetch    counts, rows and the first updates into shared memory
//   leaves   a slot and its table row are zeroed by the whole CTA
//   joins    the last one of a slot wins, by a maximum over the joins that name it
//   updates  by warp 0, 32 at a time in order; of equal entries within the 32 the highest lane wins
//   rows     the first row that names a slot takes it; thread r checks row r
//   blocks   a thread checks the blocks of one row in one group; rows over several blocks are
//            checked by a warp each
//   place    exclusive prefix sums of the good rows' query_len; rows that pass the end are bad
//   arrays   rows, then tokens, then the padding of both
//
// Bound: latency, not the 10 KB that 256 rows read over PCIe nor the 16 KB that they write, 2 KB
// more for each further group: the start, the trip, three dependent loads, scans, the write to the
// host. On an H200 6.4 us for 1 row, 6.8 for 256, 8.2 for 256 in three groups.

#include <climits>

#include "runner/refill_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr unsigned kAllLanes = 0xffffffffu;

// Updates that are read together; the first ones already with the counts. Enough for a decode step
// of 512 rows of which every other one begins a block.
constexpr int kUpdateChunk = 256;

// Leaves that are read with the counts. Further ones cost a trip over PCIe each.
constexpr int kFetchedLeaves = 128;

// A row that reaches over more blocks than this is checked by a warp.
constexpr int kMaxBlocksOfThread = 4;

static_assert(sizeof(StepRow) == sizeof(int4));
static_assert(sizeof(BlockTableUpdate) == sizeof(int4));
static_assert(sizeof(StepDeltaCounts) == 7 * sizeof(int32_t));

struct StaticShared {
  StepDeltaCounts counts;
  alignas(16) BlockTableUpdate updates[kUpdateChunk];
  int32_t leaves[kFetchedLeaves];
  int64_t warp_sums[kWarps];
  int num_bad;
  int num_long_rows;
  int num_tokens;  // of all rows that are served
};

// Behind it, in dynamic shared memory.
struct DynamicShared {
  StepRow* rows;         // [padded_num_rows]
  int32_t* seq_len;      // [padded_num_rows] before the step; -1: the row is not served
  int32_t* last_token;   // [padded_num_rows] and encoder_len: of the row's slot, read with seq_len
  int32_t* encoder_len;  // [padded_num_rows]
  int32_t* start;     // [padded_num_rows] 1: all its blocks are there; from `place` on, first token
  int32_t* long_row;  // [padded_num_rows] rows that warps have to check
  int32_t* claim;     // [num_slots] who takes the slot
};

__host__ __device__ int64_t DynamicBytes(int padded_num_rows, int num_slots) {
  return static_cast<int64_t>(sizeof(StepRow) + 5 * sizeof(int32_t)) * padded_num_rows +
         static_cast<int64_t>(sizeof(int32_t)) * num_slots;
}

__device__ DynamicShared Carve(char* memory, int padded_num_rows) {
  DynamicShared shared;
  shared.rows = reinterpret_cast<StepRow*>(memory);
  shared.seq_len = reinterpret_cast<int32_t*>(shared.rows + padded_num_rows);
  shared.last_token = shared.seq_len + padded_num_rows;
  shared.encoder_len = shared.last_token + padded_num_rows;
  shared.start = shared.encoder_len + padded_num_rows;
  shared.long_row = shared.start + padded_num_rows;
  shared.claim = shared.long_row + padded_num_rows;
  return shared;
}

// Columns that the row's tokens reach over.
__device__ int NumColumns(const StepRow& row, int32_t seq_len, const RefillArgs& args) {
  return (seq_len + row.query_len - 1) / args.block_size - seq_len / args.block_size + 1;
}

// Asks for `count` updates from `first` on.
__device__ void FetchUpdates(const RefillArgs& args, int first, int count, StaticShared& shared) {
  const int4* source = reinterpret_cast<const int4*>(args.delta.updates + first);
  int4* target = reinterpret_cast<int4*>(shared.updates);
  for (int i = threadIdx.x; i < count; i += kThreads) target[i] = source[i];
}

// All that is asked for over PCIe is asked for before any of it is waited for: the compiler may not
// move a load before a store to shared memory.
__device__ void Fetch(const RefillArgs& args, StaticShared& shared, const DynamicShared& rows) {
  const int t = threadIdx.x;
  constexpr int kNumCounts = sizeof(StepDeltaCounts) / sizeof(int32_t);
  static_assert(kUpdateChunk <= kThreads && kFetchedLeaves <= kThreads && kNumCounts <= kThreads);
  const bool has_row = t < args.padded_num_rows;
  const bool has_update = t < min(args.delta.max_updates, kUpdateChunk);
  const bool has_leaf = t < min(args.slots.num_slots, kFetchedLeaves);
  int4 row = {};
  int4 update = {};
  int32_t leaf = 0;
  int32_t count = 0;
  if (t < kNumCounts) count = reinterpret_cast<const int32_t*>(args.delta.counts)[t];
  if (has_row) row = reinterpret_cast<const int4*>(args.delta.rows)[t];
  if (has_update) update = reinterpret_cast<const int4*>(args.delta.updates)[t];
  if (has_leaf) leaf = args.delta.leaves[t];

  if (t < kNumCounts) reinterpret_cast<int32_t*>(&shared.counts)[t] = count;
  if (has_row) reinterpret_cast<int4*>(rows.rows)[t] = row;
  if (has_update) reinterpret_cast<int4*>(shared.updates)[t] = update;
  if (has_leaf) shared.leaves[t] = leaf;
  for (int r = t + kThreads; r < args.padded_num_rows; r += kThreads) {
    reinterpret_cast<int4*>(rows.rows)[r] = reinterpret_cast<const int4*>(args.delta.rows)[r];
  }
  if (t == 0) {
    shared.num_long_rows = 0;
    shared.num_tokens = 0;
  }
}

__device__ void ClearClaims(const RefillArgs& args, const DynamicShared& rows) {
  for (int slot = threadIdx.x; slot < args.slots.num_slots; slot += kThreads) {
    rows.claim[slot] = INT_MAX;
  }
}

__device__ void ApplyLeaves(const RefillArgs& args, int num_leaves, StaticShared& shared) {
  for (int i = 0; i < num_leaves; ++i) {
    const int32_t slot = i < kFetchedLeaves ? shared.leaves[i] : args.delta.leaves[i];
    if (!IsSlot(slot, args.slots)) {
      if (threadIdx.x == 0) ++shared.num_bad;
      continue;
    }
    for (int g = 0; g < args.slots.num_groups; ++g) {
      int32_t* table_row = args.slots.table_row(g, slot);
      for (int c = threadIdx.x; c < args.slots.max_blocks; c += kThreads) table_row[c] = 0;
    }
    if (threadIdx.x == 0) {
      args.slots.seq_len[slot] = 0;
      args.slots.encoder_len[slot] = 0;
      args.slots.last_token[slot] = 0;
      args.slots.sample_index[slot] = 0;
      args.slots.sampling[slot] = SamplingParams();
    }
  }
}

// The claim of the last join of a slot is the least: -1 - i. Leaves the claims cleared.
__device__ void ApplyJoins(const RefillArgs& args, int num_joins, StaticShared& shared,
                           const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_joins; i += kThreads) {
    const SlotJoin join = args.delta.joins[i];
    if (IsValidJoin(join, args)) {
      atomicMin(&rows.claim[join.slot], -1 - i);
    } else {
      atomicAdd(&shared.num_bad, 1);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_joins; i += kThreads) {
    const SlotJoin join = args.delta.joins[i];
    if (!IsValidJoin(join, args) || rows.claim[join.slot] != -1 - i) continue;
    args.slots.seq_len[join.slot] = join.seq_len;
    args.slots.encoder_len[join.slot] = join.num_encoder_tokens;
    args.slots.last_token[join.slot] = 0;
    args.slots.sample_index[join.slot] = join.sample_index;
    args.slots.sampling[join.slot] = join.sampling;
  }
  __syncthreads();
  ClearClaims(args, rows);
}

// Of shared.updates, by warp 0.
__device__ void ApplyUpdateChunk(const RefillArgs& args, int count, StaticShared& shared) {
  const int lane = threadIdx.x;
  for (int first = 0; first < count; first += kWarpSize) {
    const int i = first + lane;
    const bool is_valid = i < count && IsValidUpdate(shared.updates[i], args);
    if (i < count && !is_valid) atomicAdd(&shared.num_bad, 1);
    // Where it goes, as an offset; those that go nowhere differ from all others.
    int64_t offset = -1 - lane;
    if (is_valid) {
      const BlockTableUpdate update = shared.updates[i];
      offset =
          args.slots.table_row(update.group, update.slot) + update.column - args.slots.block_table;
    }
    const unsigned same = __match_any_sync(kAllLanes, static_cast<unsigned long long>(offset));
    const bool is_last = lane == kWarpSize - 1 - __clz(static_cast<int>(same));
    if (is_valid && is_last) args.slots.block_table[offset] = shared.updates[i].block;
    __syncwarp();  // orders the stores of this round before those of the next
  }
}

__device__ void ApplyUpdates(const RefillArgs& args, int num_updates, StaticShared& shared) {
  // Fetch() has read these.
  int fetched = min(args.delta.max_updates, kUpdateChunk);
  for (int first = 0; first < num_updates;) {
    if (fetched == 0) {
      fetched = min(num_updates - first, kUpdateChunk);
      FetchUpdates(args, first, fetched, shared);
      __syncthreads();
    }
    const int count = min(fetched, num_updates - first);
    if (threadIdx.x < kWarpSize) ApplyUpdateChunk(args, count, shared);
    __syncthreads();
    first += count;
    fetched = 0;
  }
}

// Checks row r, all but its blocks and whether it fits. Leaves its seq_len, or -1.
__device__ void CheckRow(const RefillArgs& args, int r, int num_host_tokens, StaticShared& shared,
                         const DynamicShared& rows) {
  const StepRow row = rows.rows[r];
  int32_t seq_len = -1;
  if (IsSlot(row.slot, args.slots) && rows.claim[row.slot] == r) {
    seq_len = args.slots.seq_len[row.slot];
    const int32_t last_token = args.slots.last_token[row.slot];
    const int32_t encoder_len = args.slots.encoder_len[row.slot];
    rows.last_token[r] = last_token;
    rows.encoder_len[r] = encoder_len;
    if (!IsValidRow(row, seq_len, num_host_tokens, args)) seq_len = -1;
  }
  rows.seq_len[r] = seq_len;
  rows.start[r] = 1;
  if (seq_len >= 0 && NumColumns(row, seq_len, args) > kMaxBlocksOfThread) {
    rows.long_row[atomicAdd(&shared.num_long_rows, 1)] = r;
  }
}

// Whether every `step`-th block of the row, from its `first`-th on, is there in a group's table.
__device__ bool HasBlocks(const RefillArgs& args, const StepRow& row, int32_t seq_len, int group,
                          int first, int step) {
  const int32_t* table_row = args.slots.table_row(group, row.slot);
  const KvGroupSpec spec = args.groups[group];
  const int64_t end = static_cast<int64_t>(seq_len) + row.query_len;
  const int num_columns = NumColumns(row, seq_len, args);
  bool has_blocks = true;
  for (int i = first; i < num_columns; i += step) {
    const int column = seq_len / args.block_size + i;
    has_blocks = has_blocks && IsServableBlock(table_row[column], column, end, spec, args);
  }
  return has_blocks;
}

// The blocks of rows that are not long, by a thread for each row and group.
__device__ void CheckBlocks(const RefillArgs& args, int num_rows, const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_rows * args.slots.num_groups; i += kThreads) {
    const int group = i / num_rows;
    const int r = i - group * num_rows;
    const StepRow row = rows.rows[r];
    const int32_t seq_len = rows.seq_len[r];
    if (seq_len < 0 || !IsWrittenByRows(args.groups[group])) continue;
    if (NumColumns(row, seq_len, args) > kMaxBlocksOfThread) continue;
    if (!HasBlocks(args, row, seq_len, group, /*first=*/0, /*step=*/1)) {
      atomicAnd(&rows.start[r], 0);
    }
  }
}

// By a warp.
__device__ void CheckLongRow(const RefillArgs& args, int r, const DynamicShared& rows) {
  const int lane = threadIdx.x % kWarpSize;
  bool has_blocks = true;
  for (int group = 0; group < args.slots.num_groups; ++group) {
    if (!IsWrittenByRows(args.groups[group])) continue;
    has_blocks =
        has_blocks && HasBlocks(args, rows.rows[r], rows.seq_len[r], group, lane, kWarpSize);
  }
  has_blocks = __all_sync(kAllLanes, has_blocks);
  if (!has_blocks && lane == 0) rows.start[r] = 0;
}

__device__ int64_t WarpInclusiveSum(int64_t value) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const long long below = __shfl_up_sync(kAllLanes, static_cast<long long>(value), offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// The exclusive prefix sum of `value` over the CTA, and the total.
struct Prefix {
  int64_t before;
  int64_t total;
};
__device__ Prefix ExclusiveSum(int64_t value, StaticShared& shared) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t inclusive = WarpInclusiveSum(value);
  if (lane == kWarpSize - 1) shared.warp_sums[warp] = inclusive;
  __syncthreads();
  if (warp == 0) shared.warp_sums[lane] = WarpInclusiveSum(shared.warp_sums[lane]);
  __syncthreads();
  const Prefix prefix = {inclusive - value + (warp > 0 ? shared.warp_sums[warp - 1] : 0),
                         shared.warp_sums[kWarps - 1]};
  __syncthreads();
  return prefix;
}

// Gives rows their first tokens and drops those that do not fit. A row that is not served has the
// first token of the next one, or, at the end, the number of tokens.
__device__ void PlaceRows(const RefillArgs& args, int num_rows, StaticShared& shared,
                          const DynamicShared& rows) {
  int64_t carry = 0;
  for (int base = 0; base < args.padded_num_rows; base += kThreads) {
    const int r = base + threadIdx.x;
    const bool is_row = r < num_rows;
    const bool is_good = is_row && rows.seq_len[r] >= 0 && rows.start[r] != 0;
    const int query_len = is_good ? rows.rows[r].query_len : 0;
    const Prefix prefix = ExclusiveSum(query_len, shared);
    const int64_t start = carry + prefix.before;
    const bool fits = query_len > 0 && start + query_len <= args.padded_num_tokens;
    // The largest: sums never fall, and what does not fit comes after all that does.
    if (fits) atomicMax(&shared.num_tokens, static_cast<int>(start) + query_len);
    if (is_row && !fits) {
      rows.seq_len[r] = -1;
      atomicAdd(&shared.num_bad, 1);
    }
    if (r < args.padded_num_rows) {
      rows.start[r] =
          static_cast<int>(start < args.padded_num_tokens ? start : args.padded_num_tokens);
    }
    carry += prefix.total;
  }
  __syncthreads();
}

__device__ void WriteToken(const RefillArgs& args, int token, int32_t token_id, int32_t position) {
  args.arrays.token_ids[token] = token_id;
  args.arrays.positions[token] = position;
}

__device__ void WriteSlot(const RefillArgs& args, int token, int32_t slot, int32_t position,
                          int group) {
  int64_t cache_slot = -1;
  if (IsWrittenByRows(args.groups[group])) {
    cache_slot =
        SlotOf(args.slots.table_row(group, slot)[position / args.block_size], position, args);
  }
  args.arrays.group_slots(group)[token] = cache_slot;
}

// The slots of rows that have one token, by a thread for each row and group.
__device__ void WriteSlots(const RefillArgs& args, int num_rows, const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_rows * args.slots.num_groups; i += kThreads) {
    const int group = i / num_rows;
    const int r = i - group * num_rows;
    const StepRow row = rows.rows[r];
    if (rows.seq_len[r] < 0 || row.query_len > 1) continue;
    WriteSlot(args, rows.start[r], row.slot, rows.seq_len[r], group);
  }
}

// The arrays of row r, and its token, all but its slots, if it has one only.
__device__ void WriteRow(const RefillArgs& args, int r, int num_rows, const StaticShared& shared,
                         const DynamicShared& rows) {
  const StepArrays& arrays = args.arrays;
  const int start = min(rows.start[r], shared.num_tokens);
  arrays.query_start_loc[r] = start;
  if (r >= num_rows || rows.seq_len[r] < 0) {
    arrays.seq_lens[r] = 0;
    arrays.context_lens[r] = 0;
    arrays.encoder_lens[r] = 0;
    arrays.table_row[r] = 0;
    arrays.logits_indices[r] = 0;
    arrays.sample_slot[r] = -1;
    return;
  }
  const StepRow row = rows.rows[r];
  const int32_t seq_len = rows.seq_len[r];
  if (row.query_len == 1) {
    const int32_t token_id = row.first_host_token < 0
                                 ? rows.last_token[r]
                                 : args.delta.host_tokens[row.first_host_token];
    WriteToken(args, start, token_id, seq_len);
  }
  args.slots.seq_len[row.slot] = seq_len + row.query_len;
  arrays.seq_lens[r] = seq_len + row.query_len;
  arrays.context_lens[r] = seq_len;
  arrays.encoder_lens[r] = rows.encoder_len[r];
  arrays.table_row[r] = row.slot;
  arrays.logits_indices[r] = start + row.query_len - 1;
  arrays.sample_slot[r] = row.samples != 0 ? row.slot : -1;
}

// The row of a token: the last one that begins at or before it. Never one that is not served: that
// begins where the next one does.
__device__ int RowOfToken(int token, int num_rows, const DynamicShared& rows) {
  int low = 0;
  int high = num_rows;  // the row is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (rows.start[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The tokens of rows that have several.
__device__ void WriteTokens(const RefillArgs& args, int num_rows, const StaticShared& shared,
                            const DynamicShared& rows) {
  for (int token = threadIdx.x; token < shared.num_tokens; token += kThreads) {
    const int r = RowOfToken(token, num_rows, rows);
    const StepRow row = rows.rows[r];
    if (row.query_len == 1) continue;
    const int i = token - rows.start[r];
    const int32_t position = rows.seq_len[r] + i;
    WriteToken(args, token, args.delta.host_tokens[row.first_host_token + i], position);
    for (int group = 0; group < args.slots.num_groups; ++group) {
      WriteSlot(args, token, row.slot, position, group);
    }
  }
}

__global__ void __launch_bounds__(kThreads) RefillKernel(const __grid_constant__ RefillArgs args) {
  __shared__ StaticShared shared;
  extern __shared__ int4 dynamic[];
  const DynamicShared rows = Carve(reinterpret_cast<char*>(dynamic), args.padded_num_rows);

  Fetch(args, shared, rows);
  ClearClaims(args, rows);
  __syncthreads();
  const RefillCounts counts = ClampCounts(shared.counts, args);
  if (threadIdx.x == 0) shared.num_bad = counts.num_beyond;
  if (counts.num_leaves + counts.num_joins + counts.num_updates > 0) {
    __syncthreads();
    ApplyLeaves(args, counts.num_leaves, shared);
    if (counts.num_joins > 0) {
      __syncthreads();
      ApplyJoins(args, counts.num_joins, shared, rows);
    }
    __syncthreads();
    ApplyUpdates(args, counts.num_updates, shared);
  }

  for (int r = threadIdx.x; r < counts.num_rows; r += kThreads) {
    const int32_t slot = rows.rows[r].slot;
    if (IsSlot(slot, args.slots)) atomicMin(&rows.claim[slot], r);
  }
  __syncthreads();
  for (int r = threadIdx.x; r < counts.num_rows; r += kThreads) {
    CheckRow(args, r, counts.num_host_tokens, shared, rows);
  }
  __syncthreads();
  CheckBlocks(args, counts.num_rows, rows);
  for (int i = threadIdx.x / kWarpSize; i < shared.num_long_rows; i += kWarps) {
    CheckLongRow(args, rows.long_row[i], rows);
  }
  __syncthreads();
  PlaceRows(args, counts.num_rows, shared, rows);

  WriteSlots(args, counts.num_rows, rows);
  bool has_several = false;
  for (int r = threadIdx.x; r < args.padded_num_rows; r += kThreads) {
    WriteRow(args, r, counts.num_rows, shared, rows);
    if (r < counts.num_rows && rows.seq_len[r] >= 0) has_several |= rows.rows[r].query_len > 1;
  }
  if (__syncthreads_or(has_several)) WriteTokens(args, counts.num_rows, shared, rows);
  for (int token = shared.num_tokens + threadIdx.x; token < args.padded_num_tokens;
       token += kThreads) {
    args.arrays.token_ids[token] = 0;
    args.arrays.positions[token] = 0;
    for (int g = 0; g < args.slots.num_groups; ++g) args.arrays.group_slots(g)[token] = -1;
  }
  if (threadIdx.x == 0) {
    args.arrays.query_start_loc[args.padded_num_rows] = shared.num_tokens;
    *args.arrays.common_prefix_len = CommonPrefixLenOf(shared.counts);
    *args.arrays.num_bad_rows = shared.num_bad;
  }
}

}  // namespace

cudaError_t LaunchRefill(const RefillArgs& args, cudaStream_t stream) {
  if (args.padded_num_rows < 0 || args.padded_num_rows > args.arrays.max_rows ||
      args.padded_num_tokens < 0 || args.padded_num_tokens > args.arrays.max_tokens ||
      args.block_size < 1 || args.slots.num_groups < 1 || args.slots.num_groups > kMaxKvGroups) {
    return cudaErrorInvalidValue;
  }
  constexpr int64_t kWithoutAsking = 32 << 10;  // 48 KiB with the static part
  const int64_t bytes = DynamicBytes(args.padded_num_rows, args.slots.num_slots);
  if (bytes > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(
        RefillKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // it is reported here, and not once more by the next call
      return cudaErrorInvalidConfiguration;
    }
  }
  RefillKernel<<<1, kThreads, static_cast<size_t>(bytes), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
