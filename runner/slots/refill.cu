// Runs a refill in one CTA: applies the delta to the slots, then writes the step's arrays.
//
// Almost all of its time is the latency of a dependent chain, so more CTAs would not be faster: the
// delta over PCIe (one round trip: counts, rows and the first updates are requested together), then
// for each row its slot's length, its table entry, a prefix sum, and stores. One thread handles a
// row with one token, and one thread per KV group the row's block and slot mapping. All threads
// share the tokens of rows with several tokens.
//
// Phases, with a barrier between them:
//   fetch    counts, rows and the first leaves and updates are copied into shared memory
//   leaves   the whole CTA clears each slot and its table row
//   joins    of several joins of a slot, the join with the largest index wins
//   updates  warp 0, 32 at a time in order; of updates of the same entry, the highest lane wins
//   rows     the first row that names a slot takes it; one thread checks each row
//   blocks   one thread checks the blocks of one row in one group; one warp checks each row that
//            spans many blocks
//   place    exclusive prefix sums of the served rows' query_len; rows beyond the end are faulty.
//            In steps with scored rows, first the same for the rows' earlier logits
//   arrays   rows with their padding, then tokens, then the padding of tokens
//
// Bound: latency of the launch, the PCIe round trip, three dependent loads, scans, and the write to
// the host. The bytes do not matter: 256 decodes read about 9 KB over PCIe and write about 12 KB (2
// KB more per further group). docs/performance.md has the measured times.

#include <climits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/slots/refill.h"

namespace reprise {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr unsigned kAllLanes = 0xffffffffu;

// Number of updates per read; the first ones are read with the counts. Sufficient for a decode step
// of 512 rows of which every second row begins a block.
constexpr int kUpdateChunk = 256;

// Number of leaves that are read with the counts. Each further leave costs a PCIe round trip.
constexpr int kFetchedLeaves = 128;

// A row that spans more blocks than this is checked by a warp.
constexpr int kMaxBlocksOfThread = 4;

static_assert(sizeof(StepRow) == sizeof(int4));
static_assert(sizeof(StepUpdate) == sizeof(int4));
static_assert(sizeof(StepDeltaCounts) == 8 * sizeof(int32_t));

struct StaticShared {
  StepDeltaCounts counts;
  alignas(16) StepUpdate updates[kUpdateChunk];
  int32_t leaves[kFetchedLeaves];
  int64_t warp_sums[kWarps];
  int num_faults;
  int num_long_rows;
  int num_tokens;  // tokens of all served rows
};

// Dynamic shared memory, after StaticShared.
struct DynamicShared {
  StepRow* rows;     // [padded_num_rows]
  int32_t* seq_len;  // [padded_num_rows] length before the step; -1 - fault: the row is not served
  // [padded_num_rows] last_token and encoder_len of the row's slot, read with seq_len.
  int32_t* last_token;
  int32_t* encoder_len;  // [padded_num_rows]
  // [padded_num_rows] 1: all its blocks exist; after phase `place`, its first token.
  int32_t* start;
  int32_t* long_row;  // [padded_num_rows] rows that warps check
  // [padded_num_rows] shares memory with long_row; set in phase `place` of steps with scored rows:
  // index of the row's first earlier token among the step's; -1: none.
  int32_t* first_earlier;
  int32_t* claim;  // [num_slots] the row or join that takes the slot
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
  shared.first_earlier = shared.long_row;
  shared.claim = shared.long_row + padded_num_rows;
  return shared;
}

// Returns row r in the form of the row builders. REQUIRES: its seq_len is not negative.
__device__ CheckedRow ServedRow(const DynamicShared& rows, int r) {
  CheckedRow row;
  row.table_row = rows.rows[r].slot;
  row.context_len = rows.seq_len[r];
  row.query_len = rows.rows[r].query_len;
  return row;
}

__device__ int32_t NotServed(RowFault fault) { return -1 - static_cast<int32_t>(fault); }
__device__ RowFault FaultOf(int32_t seq_len) {
  return seq_len < 0 ? static_cast<RowFault>(-1 - seq_len) : RowFault::kNone;
}

// Copies `count` updates, starting at `first`, into shared memory.
__device__ void FetchUpdates(const RefillArgs& args, int first, int count, StaticShared& shared) {
  const int4* source = reinterpret_cast<const int4*>(args.delta.updates + first);
  int4* target = reinterpret_cast<int4*>(shared.updates);
  for (int i = threadIdx.x; i < count; i += kThreads) target[i] = source[i];
}

// Issues all PCIe loads, except for rows beyond kThreads, before the first store to shared memory.
// The compiler does not move a load before such a store, so otherwise the loads would wait for each
// other.
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
      if (threadIdx.x == 0) ++shared.num_faults;
      continue;
    }
    for (int g = 0; g < args.slots.num_groups; ++g) {
      int32_t* table_row = args.slots.table_row(g, slot);
      for (int c = threadIdx.x; c < args.slots.max_blocks; c += kThreads) table_row[c] = 0;
    }
    if (threadIdx.x == 0) {
      args.slots.seq_len[slot] = 0;
      args.slots.encoder_len[slot] = 0;
      if (HasModelPositions(args)) args.slots.position_delta[slot] = 0;
      args.slots.last_token[slot] = 0;
      args.slots.sample_index[slot] = 0;
      args.slots.sampling[slot] = SamplingParams();
    }
  }
}

// Each valid join i claims its slot with -1 - i, so the minimum is the last join. Resets the
// claims.
__device__ void ApplyJoins(const RefillArgs& args, const RowArgs& row_args, int num_joins,
                           StaticShared& shared, const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_joins; i += kThreads) {
    const StepJoin join = args.delta.joins[i];
    if (IsValidJoin(join, args, row_args)) {
      atomicMin(&rows.claim[join.slot], -1 - i);
    } else {
      atomicAdd(&shared.num_faults, 1);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_joins; i += kThreads) {
    const StepJoin join = args.delta.joins[i];
    if (!IsValidJoin(join, args, row_args) || rows.claim[join.slot] != -1 - i) continue;
    args.slots.seq_len[join.slot] = join.seq_len;
    args.slots.encoder_len[join.slot] = join.num_encoder_tokens;
    if (HasModelPositions(args)) args.slots.position_delta[join.slot] = join.position_delta;
    args.slots.last_token[join.slot] = 0;
    args.slots.sample_index[join.slot] = join.sample_index;
    args.slots.sampling[join.slot] = join.sampling;
    if (args.slots.drafted_len != nullptr) {
      args.slots.drafted_len[join.slot] = join.seq_len - join.num_undrafted;
    }
  }
  __syncthreads();
  ClearClaims(args, rows);
  if (args.slots.history.tokens == nullptr) return;
  // The tokens of cached keys are unknown, because another sequence may have computed them.
  for (int i = 0; i < num_joins; ++i) {
    const StepJoin join = args.delta.joins[i];
    if (!IsValidJoin(join, args, row_args)) continue;
    const int64_t seq_len = args.slots.seq_len[join.slot];
    int32_t* tokens = args.slots.history.row(join.slot);
    for (int64_t t = threadIdx.x; t < min(seq_len, args.slots.history.stride); t += kThreads) {
      tokens[t] = -1;
    }
  }
}

// Applies shared.updates. Called by warp 0.
__device__ void ApplyUpdateChunk(const RefillArgs& args, int count, StaticShared& shared) {
  const int lane = threadIdx.x;
  for (int first = 0; first < count; first += kWarpSize) {
    const int i = first + lane;
    const bool is_valid = i < count && IsValidUpdate(shared.updates[i], args);
    if (i < count && !is_valid) atomicAdd(&shared.num_faults, 1);
    // The offset of the updated entry; invalid updates get distinct values.
    int64_t offset = -1 - lane;
    if (is_valid) {
      const StepUpdate update = shared.updates[i];
      offset =
          args.slots.table_row(update.group, update.slot) + update.column - args.slots.block_table;
    }
    const unsigned same = __match_any_sync(kAllLanes, static_cast<unsigned long long>(offset));
    const bool is_last = lane == kWarpSize - 1 - __clz(static_cast<int>(same));
    if (is_valid && is_last) args.slots.block_table[offset] = shared.updates[i].block;
    __syncwarp();  // orders the stores of this round before the stores of the next round
  }
}

__device__ void ApplyUpdates(const RefillArgs& args, int num_updates, StaticShared& shared) {
  // Fetch() has already read these updates.
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

// Checks row r, except its blocks and whether it fits. Stores its seq_len, or its fault if it is
// not served.
__device__ void CheckRowOfStep(const RefillArgs& args, const RowArgs& row_args, int r,
                               int num_host_tokens, StaticShared& shared,
                               const DynamicShared& rows) {
  const StepRow step_row = rows.rows[r];
  const bool is_first = IsSlot(step_row.slot, args.slots) && rows.claim[step_row.slot] == r;
  int32_t seq_len = 0;
  if (is_first) {
    seq_len = args.slots.seq_len[step_row.slot];
    const int32_t last_token = args.slots.last_token[step_row.slot];
    const int32_t encoder_len = args.slots.encoder_len[step_row.slot];
    rows.last_token[r] = last_token;
    rows.encoder_len[r] = encoder_len;
  }
  const CheckedRow row = CheckStepRow(step_row, is_first, seq_len, num_host_tokens, row_args);
  rows.seq_len[r] = row.is_live() ? seq_len : NotServed(row.fault);
  rows.start[r] = 1;
  if (row.is_live() && NewColumns(row_args, row).size() > kMaxBlocksOfThread) {
    rows.long_row[atomicAdd(&shared.num_long_rows, 1)] = r;
  }
}

// Checks the blocks of rows that are not long, with one thread per row and group.
__device__ void CheckBlocks(const RowArgs& row_args, int num_rows, const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_rows * row_args.num_groups; i += kThreads) {
    const int group = i / num_rows;
    const int r = i - group * num_rows;
    if (rows.seq_len[r] < 0) continue;
    const CheckedRow row = ServedRow(rows, r);
    if (NewColumns(row_args, row).size() > kMaxBlocksOfThread) continue;
    if (!HasBlocks(SerialLanes(), row_args, row, group)) atomicAnd(&rows.start[r], 0);
  }
}

// Checks the blocks of a long row. Called by a warp.
__device__ void CheckLongRow(const RowArgs& row_args, int r, const DynamicShared& rows) {
  const bool has_blocks = HasBlocks(WarpLanes(), row_args, ServedRow(rows, r));
  if (!has_blocks && threadIdx.x % kWarpSize == 0) rows.start[r] = 0;
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

// The exclusive prefix sum of a value over the CTA, and its total.
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

// Assigns indices of earlier logits to rows, drops rows that do not fit, and clears the entries of
// all earlier logits. Only in steps with scored rows, before PlaceRows().
__device__ void PlaceEarlierLogits(const RefillArgs& args, int num_rows, StaticShared& shared,
                                   const DynamicShared& rows) {
  int64_t carry = 0;
  for (int base = 0; base < num_rows; base += kThreads) {
    const int r = base + threadIdx.x;
    const bool is_good = r < num_rows && rows.seq_len[r] >= 0 && rows.start[r] != 0;
    const int count = is_good ? NumEarlierLogits(rows.rows[r].query_len, args.delta.scores[r]) : 0;
    const Prefix prefix = ExclusiveSum(count, shared);
    const int64_t first = carry + prefix.before;
    const bool fits = first + count <= args.padded_num_earlier_logits;
    if (count > 0 && !fits) rows.seq_len[r] = NotServed(RowFault::kNoRoom);
    if (r < num_rows) rows.first_earlier[r] = count > 0 && fits ? static_cast<int>(first) : -1;
    carry += prefix.total;
  }
  for (int i = threadIdx.x; i < args.padded_num_earlier_logits; i += kThreads) {
    WriteEarlierLogits(args, i, 0, {}, {});
  }
  __syncthreads();
}

// Assigns first tokens to rows, and drops rows that do not fit. A row that is not served gets the
// first token of the next served row, or at least the number of served tokens if no served row
// follows.
__device__ void PlaceRows(const RefillArgs& args, int num_rows, StaticShared& shared,
                          const DynamicShared& rows) {
  int64_t carry = 0;
  for (int base = 0; base < args.padded_num_rows; base += kThreads) {
    const int r = base + threadIdx.x;
    const bool is_row = r < num_rows;
    const bool is_checked = is_row && rows.seq_len[r] >= 0;
    const bool is_good = is_checked && rows.start[r] != 0;
    const int query_len = is_good ? rows.rows[r].query_len : 0;
    const Prefix prefix = ExclusiveSum(query_len, shared);
    const int64_t start = carry + prefix.before;
    const bool fits = query_len > 0 && start + query_len <= args.padded_num_tokens;
    // The maximum is the last served row's end: sums never decrease, and rows that do not fit come
    // last.
    if (fits) atomicMax(&shared.num_tokens, static_cast<int>(start) + query_len);
    if (is_row && !fits) {
      if (is_checked) rows.seq_len[r] = NotServed(is_good ? RowFault::kNoRoom : RowFault::kNoBlock);
      atomicAdd(&shared.num_faults, 1);
    }
    if (r < args.padded_num_rows) {
      rows.start[r] =
          static_cast<int>(start < args.padded_num_tokens ? start : args.padded_num_tokens);
    }
    carry += prefix.total;
  }
  __syncthreads();
}

__device__ void WriteIdAndPosition(const RowArgs& row_args, int token, int32_t token_id,
                                   int32_t position) {
  row_args.arrays.token_ids[token] = token_id;
  row_args.arrays.positions[token] = position;
}

// Writes the slot mapping of rows with one token, with one thread per row and group.
__device__ void WriteSlots(const RowArgs& row_args, int num_rows, const DynamicShared& rows) {
  for (int i = threadIdx.x; i < num_rows * row_args.num_groups; i += kThreads) {
    const int group = i / num_rows;
    const int r = i - group * num_rows;
    if (rows.seq_len[r] < 0 || rows.rows[r].query_len > 1) continue;
    row_args.arrays.group_slots(group)[rows.start[r]] =
        NewTokenSlot(row_args, ServedRow(rows, r), group, 0);
  }
}

// Writes the arrays of row r. If it has only one token, also writes that token, except its slot
// mapping.
__device__ void WriteRowOfStep(const RefillArgs& args, const RowArgs& row_args, int r, int num_rows,
                               const StaticShared& shared, const DynamicShared& rows) {
  const int start = min(rows.start[r], shared.num_tokens);
  CheckedRow row;
  if (r < num_rows) {
    row = ServedRow(rows, r);
    row.fault = FaultOf(rows.seq_len[r]);
  }
  WriteBatchRow(row_args, r, row, start);
  const bool is_live = row.is_live();
  args.arrays.encoder_lens[r] = is_live ? rows.encoder_len[r] : 0;
  args.arrays.sample_slot[r] = is_live && rows.rows[r].samples != 0 ? row.table_row : -1;
  if (args.has_scored_rows) {
    WriteScoredToken(args.arrays, r,
                     is_live ? ScoredByLast(rows.rows[r], args.delta.scores[r]) : ScoredToken());
  }
  if (args.has_drafts) {
    WriteVerifiedRow(args, r, is_live ? rows.rows[r] : StepRow(), is_live,
                     is_live ? rows.first_earlier[r] : -1);
  }
  if (!is_live) return;
  AdvanceSlot(args, rows.rows[r], row.context_len);
  if (row.query_len > 1) return;
  const int32_t token_id = TokenIdOf(args, rows.rows[r], rows.last_token[r], /*i=*/0);
  WriteIdAndPosition(row_args, start, token_id, row.context_len);
  WriteHistory(args, row_args, rows.rows[r], row, /*i=*/0, token_id);
  if (!HasModelPositions(args)) return;
  WriteModelPositions(args, shared.counts, rows.rows[r], row.context_len,
                      args.slots.position_delta[row.table_row], /*i=*/0, start);
}

// Returns the row of a token: the last row that begins at or before the token. This is never a row
// that is not served, because such a row begins where the next row begins.
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

// Writes the tokens of rows with several tokens.
__device__ void WriteTokens(const RefillArgs& args, const RowArgs& row_args, int num_rows,
                            const StaticShared& shared, const DynamicShared& rows) {
  for (int token = threadIdx.x; token < shared.num_tokens; token += kThreads) {
    const int r = RowOfToken(token, num_rows, rows);
    if (rows.rows[r].query_len == 1) continue;
    const int i = token - rows.start[r];
    const CheckedRow row = ServedRow(rows, r);
    const int32_t token_id = TokenIdOf(args, rows.rows[r], rows.last_token[r], i);
    WriteNewToken(row_args, row, i, token, token_id);
    WriteHistory(args, row_args, rows.rows[r], row, i, token_id);
    WriteDraft(args, rows.rows[r], i, token);
    // This token is the next token of the previous token.
    if (args.padded_num_earlier_logits > 0 && i > 0 && rows.first_earlier[r] >= 0) {
      WriteEarlierLogitsOf(args, rows.rows[r], i - 1, rows.first_earlier[r] + i - 1, token - 1,
                           token_id);
    }
    if (HasModelPositions(args)) {
      WriteModelPositions(args, shared.counts, rows.rows[r], row.context_len,
                          args.slots.position_delta[row.table_row], i, token);
    }
  }
}

__global__ void __launch_bounds__(kThreads) RefillKernel(const __grid_constant__ RefillArgs args,
                                                         const __grid_constant__ RowArgs row_args) {
  __shared__ StaticShared shared;
  extern __shared__ int4 dynamic[];
  const DynamicShared rows = Carve(reinterpret_cast<char*>(dynamic), args.padded_num_rows);

  Fetch(args, shared, rows);
  ClearClaims(args, rows);
  __syncthreads();
  const RefillCounts counts = ClampCounts(shared.counts, args);
  if (threadIdx.x == 0) shared.num_faults = counts.num_beyond;
  if (counts.num_leaves + counts.num_joins + counts.num_updates > 0) {
    __syncthreads();
    ApplyLeaves(args, counts.num_leaves, shared);
    if (counts.num_joins > 0) {
      __syncthreads();
      ApplyJoins(args, row_args, counts.num_joins, shared, rows);
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
    CheckRowOfStep(args, row_args, r, counts.num_host_tokens, shared, rows);
  }
  __syncthreads();
  CheckBlocks(row_args, counts.num_rows, rows);
  for (int i = threadIdx.x / kWarpSize; i < shared.num_long_rows; i += kWarps) {
    CheckLongRow(row_args, rows.long_row[i], rows);
  }
  __syncthreads();
  if (args.has_scored_rows) PlaceEarlierLogits(args, counts.num_rows, shared, rows);
  PlaceRows(args, counts.num_rows, shared, rows);

  WriteSlots(row_args, counts.num_rows, rows);
  bool has_several = false;
  for (int r = threadIdx.x; r < args.padded_num_rows; r += kThreads) {
    WriteRowOfStep(args, row_args, r, counts.num_rows, shared, rows);
    if (r < counts.num_rows && rows.seq_len[r] >= 0) has_several |= rows.rows[r].query_len > 1;
  }
  if (__syncthreads_or(has_several)) {
    WriteTokens(args, row_args, counts.num_rows, shared, rows);
  }
  for (int token = shared.num_tokens + threadIdx.x; token < args.padded_num_tokens;
       token += kThreads) {
    WriteInertToken(row_args, token);
    if (HasModelPositions(args)) ClearModelPositions(args, token);
  }
  if (threadIdx.x == 0) {
    args.arrays.query_start_loc[args.padded_num_rows] = shared.num_tokens;
    WriteStepValues(args, CommonPrefixLenOf(shared.counts), shared.num_faults);
  }
}

}  // namespace

absl::Status LaunchRefill(const RefillArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckRefill(args));
  constexpr int64_t kWithoutAsking =
      32 << 10;  // at most 48 KiB with static shared memory: no attribute is needed
  const int64_t bytes = DynamicBytes(args.padded_num_rows, args.slots.num_slots);
  if (bytes > kWithoutAsking) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(
        cudaFuncSetAttribute(RefillKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        absl::StrCat("refill of ", args.padded_num_rows, " rows over ", args.slots.num_slots,
                     " slots, ", bytes, " bytes of shared memory")));
  }
  RefillKernel<<<1, kThreads, static_cast<size_t>(bytes), stream>>>(args, RefillRowArgs(args));
  return CudaStatus(cudaGetLastError(), "RefillKernel");
}

}  // namespace reprise
