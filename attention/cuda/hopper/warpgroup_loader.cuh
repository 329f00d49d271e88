// The producer warpgroup: copies queries, keys and values of the CTA's units for the consumer
// warpgroups, as far ahead as there are empty stages.
//
// Pages are small and may have any layout, so each thread copies 16-byte chunks (cp.async) from the
// addresses that the block table gives. Each warp looks up the page addresses of its rows, one row
// per lane, and stores them for the lanes that copy the chunks of those rows.
//
// Loads to registers would wait for the copies in flight, thousands of cycles, and so would reloads
// of spilled registers. In most calls, everything else that the producer reads therefore also comes
// by cp.async: a lane's block table entries at least one KV tile ahead, and a unit's item one unit
// ahead. (Exceptions: scales and positions in device memory, and q that is not in whole chunks.)
// Data requested before a tile's copies has arrived when the copies of the next tile have been
// started (EndCopy()).
//
// The protocol of one tile of a ring (keys, values or queries):
// 1. AwaitRoom(): the producer waits until the stage is empty. If it has to wait, it first
//    announces the previous tile.
// 2. The threads start their copies of the tile.
// 3. EndCopy(): each thread waits for its copies of the previous tile, converts them to the MMA
//    type (KvLoading::kFp8, warpgroup_conversion.cuh), issues a proxy fence, and arrives at the
//    full barrier of that tile. The copies of the new tile stay in flight.
// 4. The consumers wait at the full barrier, and can then use the tile in MMAs.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LOADER_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LOADER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/query_loader.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_conversion.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_rows.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_shared.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"
#include "reprise/attention/tile_schedule/cta_units.h"

namespace reprise {

template <typename Traits>
class WarpgroupLoader {
 public:
  __device__ __forceinline__ WarpgroupLoader(const AttentionKernelParams& p,
                                             WarpgroupShared<Traits>& shared)
      : p_(p), shared_(shared), thread_(threadIdx.x - Traits::kThreads) {
    is_dealt_ = kMayBeDealt && p.work.may_be_dealt && p.work.counts[2] > 0;
  }

  // Copies the data of all units of the CTA.
  __device__ __forceinline__ void Load() {
    const CtaUnits units(p_.work, blockIdx.x);
    FetchItem(0, units.FirstItem());
    FetchNextItemNumber(units, 1);
    CommitCopies();
    WaitForCopies<0>();
    int step = 0;
    int num_indirect = 0;
    if (units.count() > 0) Prepare(units, 0);
    WaitForCopies<0>();
#pragma unroll 1
    for (int n = 0; n < units.count(); ++n) {
      const PreparedUnit<Traits>& prepared = shared_.unit(n);
      LoadUnit(units, n, step);
      step += prepared.num_steps;
      if (!Traits::kOnlyPlain && !prepared.writes_directly) {
        Announce<0>();
        shared_.results_are_out.Wait(num_indirect++);
      }
    }
    Announce<0>();
  }

 private:
  static constexpr int kThreads = Traits::kLoaderThreads;
  static constexpr int kItemChunks = sizeof(WorkItem) / 16;
  static constexpr bool kMayBeDealt = Traits::kKernel.may_be_dealt();
  static constexpr bool kQueriesAhead = Traits::kQueryStages > 1;
  using KeyRows = typename Traits::KeyRows;
  using ValueRows = typename Traits::ValueRows;
  using QueryRows = typename Traits::QueryRows;
  using NarrowQueryRows = typename Traits::NarrowQueryRows;
  static_assert(Traits::kRows == kThreads, "each thread prepares one row");

  // Row offsets, one per thread: i = 0 and 1 for the keys and values of even and odd KV tiles,
  // kQueryOffsets for the queries. A thread's entry is at its thread index, so the entries of a
  // warp are adjacent.
  static constexpr int kQueryOffsets = 2;
  __device__ __forceinline__ KeyOffsets* Offsets(int i) const {
    return &shared_.attention.offsets[0][0][0] + i * kThreads;
  }
  static_assert(3 * kThreads <= Traits::kOffsetSteps * Traits::kKeys, "room for each thread's row");

  __device__ __forceinline__ void Sync() const {
    NamedBarrierSync(Traits::kLoaderBarrier, kThreads);
  }

  // Starts copying the item of unit n from `item`.
  __device__ __forceinline__ void FetchItem(int n, const WorkItem* item) const {
    if (thread_ >= kItemChunks) return;
    CopyAsync16(SharedAddress(&shared_.unit(n).unit.item) + thread_ * 16,
                reinterpret_cast<const char*>(item) + thread_ * 16, true);
  }

  // Round-robin schedules: starts copying the index of unit n's item, from the address that
  // CtaUnits::ItemOf() reads.
  __device__ __forceinline__ void FetchNextItemNumber(const CtaUnits& units, int n) const {
    if (thread_ >= kItemChunks || n >= units.count() || !is_dealt_) return;
    CopyAsync4(SharedAddress(&shared_.next_item[thread_]), p_.work.deal_order + units.RankOf(n));
  }

  // The parameters for addresses of a row's keys, from the unit's item.
  struct RowLookup {
    const int32_t* table;  // null: a single block holds all keys
    int first_key;
    int end;  // end of the local keys
  };
  __device__ __forceinline__ RowLookup PlacesOf(const WorkItem& item) const {
    RowLookup places = {nullptr, item.first_key, item.key_end};
    if (p_.block_table) places.table = p_.block_table + item.table_row * p_.block_table_stride;
    return places;
  }

  // The buffer for this lane's block table entry for KV tile i of a unit.
  __device__ __forceinline__ int32_t* BlockOf(int i) const {
    return &shared_.blocks[i < 2 ? i : 2 + i % 2][thread_];
  }

  // Starts copying this lane's block table entry for KV tile i of a unit, if the lane has a key in
  // it. `first`: the KV tile's first local key.
  __device__ __forceinline__ void FetchBlock(const RowLookup& places, int i, int first) const {
    const int row = OwnRow<KeyRows>(thread_);
    const int key = first + row;
    if (places.table == nullptr || row >= Traits::kKeys || key >= places.end) return;
    CopyAsync4(SharedAddress(BlockOf(i)),
               places.table + p_.by_block_size.Divide(places.first_key + key));
  }

  // Records the address of this lane's row of KV tile i. REQUIRES: its block table entry has
  // arrived.
  __device__ __forceinline__ void NotePlace(const RowLookup& places, int i, int first,
                                            KeyOffsets* offsets) const {
    const int row = OwnRow<KeyRows>(thread_);
    if (row >= Traits::kKeys) return;
    const int key = first + row;
    int block = 0;
    int token = 0;
    if (key < places.end) {
      token = places.first_key + key;
      if (places.table != nullptr) {
        token -= static_cast<int>(p_.by_block_size.Divide(token)) * p_.block_size;
        block = *BlockOf(i);
        // The block id of a key that no query sees may be invalid.
        if (static_cast<unsigned>(block) >= static_cast<unsigned>(p_.num_blocks)) block = 0;
      }
    }
    offsets[thread_] = {
        (block * p_.k.block_stride + token * p_.k.token_stride) * Traits::kArrivingBytes,
        (block * p_.v.block_stride + token * p_.v.token_stride) * Traits::kArrivingBytes};
  }

  // The first dim of this thread's i-th chunk of a row.
  template <typename Rows>
  __device__ __forceinline__ int DimOf(int i) const {
    return (Rows::Chunk(thread_) + i * Rows::kLanes) * Rows::kElements;
  }

  // The addresses of this thread's chunks in a row of the tensor at offset 0. Dims past the head
  // dim get any valid address.
  template <typename Rows>
  struct Chunks {
    const char* at[Rows::kChunkPasses];
  };
  template <typename Rows>
  __device__ __forceinline__ Chunks<Rows> ChunksOf(const KvView& view, int kv_head,
                                                   int head_dim) const {
    Chunks<Rows> chunks;
#pragma unroll
    for (int i = 0; i < Rows::kChunkPasses; ++i) {
      const int dim = DimOf<Rows>(i);
      chunks.at[i] = static_cast<const char*>(view.data) +
                     (kv_head * view.head_stride + (dim < head_dim ? DimOffset(view, dim) : 0)) *
                         Traits::kArrivingBytes;
    }
    return chunks;
  }

  // Copies rows to a tile. Rows at or past num_rows and dims at or past head_dim become zeros.
  // `offsets`: the `k` or `v` fields of the row offsets (Offsets()), in bytes.
  template <typename Rows>
  __device__ __forceinline__ void CopyRows(const uint4* to, const Chunks<Rows>& chunks,
                                           int head_dim, const int64_t* offsets,
                                           int num_rows) const {
    const int row = Rows::Row(thread_);
    const uint32_t address = SharedAddress(to) + Rows::ArrivalOf(row, Rows::Chunk(thread_));
    const int warp = thread_ / 32;
    const int64_t* const own = offsets + (warp * 32 + row - warp * Rows::kRowsOfWarp) * 2;
    // Number of offsets read at a time.
    constexpr int kMaxInBatch = Rows::kChunkPasses > 1 ? 4 : 8;
    constexpr int kBatch = Rows::kPasses < kMaxInBatch ? Rows::kPasses : kMaxInBatch;
#pragma unroll
    for (int pass = 0; pass < Rows::kPasses; pass += kBatch) {
      int64_t offset[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) offset[i] = own[(pass + i) * Rows::kRowsOfWarp * 2];
#pragma unroll
      for (int c = 0; c < Rows::kChunkPasses; ++c) {
        const int end = DimOf<Rows>(c) < head_dim ? num_rows - row : 0;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int first = (pass + i) * Rows::kRowsPerPass;
          CopyAsync16(address + first * 128 + c * Rows::kChunkPassBytes, chunks.at[c] + offset[i],
                      first < end);
        }
      }
    }
  }

  // Waits for this thread's copies, except for the kPending (0 or 1) newest groups. Then converts
  // the copied tile that has not been announced, if there is one, and arrives at its full barrier.
  template <int kPending>
  __device__ __forceinline__ void Announce() {
    WaitForCopies<kPending>();
    if (copied_ == nullptr) return;
    if constexpr (Traits::kArrivesAsFp8) ConvertCopied();
    FenceProxyAsync();
    copied_->Arrive();
    copied_ = nullptr;
  }

  // Converts this thread's part of the arrived tile to float16, unless it is float16 already.
  __device__ __forceinline__ void ConvertCopied() const {
    if (copied_queries_ < 0) {
      Fp8RowsToHalves<KeyRows>(p_.kv_dtype, copied_tile_, thread_);
    } else if (IsFp8(p_.q_dtype)) {
      Fp8RowsToHalves<NarrowQueryRows>(p_.q_dtype, copied_tile_, thread_);
    } else if (p_.q_dtype == DType::kBFloat16) {
      ScaleQueriesToHalves<QueryRows>(copied_tile_, thread_,
                                      shared_.query_scales_of(copied_queries_));
    }
  }

  // Waits until the stage of fill n of a ring is empty. Called before the stage is filled.
  template <typename Ring>
  __device__ __forceinline__ void AwaitRoom(Ring& ring, int n) {
    // All lanes of a warp take this branch, or none, because the conversion takes whole warps.
    if (!__all_sync(kFullWarp, ring.IsFree(n))) {
      Announce<0>();
      ring.WaitUntilEmpty(n);
    }
    __syncwarp();  // also makes the recorded addresses visible
  }
  // Ends fill n of a ring, after its copies have been started, and announces the previous tile.
  // `queries`: the number of the unit if the tile holds its queries, otherwise -1.
  template <typename Ring>
  __device__ __forceinline__ void EndCopy(Ring& ring, int n, const uint4* tile, int queries = -1) {
    CommitCopies();
    Announce<1>();
    copied_ = &ring.there(n);
    copied_tile_ = SharedAddress(tile);
    copied_queries_ = queries;
  }

  // Prepares unit n: computes its PreparedUnit, and requests the block table entries of its first
  // two KV tiles and the item of the next unit. REQUIRES: the unit's item has arrived.
  __device__ __forceinline__ void Prepare(const CtaUnits& units, int n) const {
    PreparedUnit<Traits>& prepared = shared_.unit(n);
    const WorkUnit& unit = prepared.unit;
    Sync();
    const RowLookup places = PlacesOf(unit.item);
    FetchBlock(places, 0, unit.item.key_begin);
    FetchBlock(places, 1, unit.item.key_begin + Traits::kKeys);
    if (n + 1 < units.count()) {
      int item = 0;
      if (!is_dealt_) {
        item = units.ItemOf(n + 1);
      } else if (thread_ < kItemChunks) {
        item = shared_.next_item[thread_];
      }
      FetchItem(n + 1, p_.work.items + item);
      FetchNextItemNumber(units, n + 2);
    }
    CommitCopies();
    if (thread_ == 0) PrepareUnit(p_, units.HeadOf(n), prepared);
    Sync();
    NoteRow(p_, thread_, prepared);
    NoteQuery(unit);
  }

  // Whether q is fp8.
  __device__ __forceinline__ bool HasNarrowQueries() const {
    return Traits::kArrivesAsFp8 && IsFp8(p_.q_dtype);
  }

  // Records the address of this lane's query row.
  __device__ __forceinline__ void NoteQuery(const WorkUnit& unit) const {
    const bool is_narrow = HasNarrowQueries();
    const int row = is_narrow ? OwnRow<NarrowQueryRows>(thread_) : OwnRow<QueryRows>(thread_);
    if (row >= Traits::kRows) return;
    const TileRow tile_row = RowAt(p_, unit, row < unit.num_rows ? row : 0);
    Offsets(kQueryOffsets)[thread_].k =
        (tile_row.token * p_.q_token_stride + tile_row.q_head * p_.q_head_stride) *
        (is_narrow ? 1 : 2);
  }

  // Copies the query rows. REQUIRES: p.q_is_aligned; q's elements have the size of Rows' elements.
  template <typename Rows>
  __device__ __forceinline__ void CopyQueryRows(const WorkUnit& unit, int n) const {
    constexpr int kBytes = 16 / Rows::kElements;
    Chunks<Rows> chunks;
#pragma unroll
    for (int i = 0; i < Rows::kChunkPasses; ++i) {
      const int dim = DimOf<Rows>(i) < p_.head_dim_qk ? DimOf<Rows>(i) : 0;
      chunks.at[i] = static_cast<const char*>(p_.q) + dim * kBytes;
    }
    CopyRows<Rows>(shared_.q(n), chunks, p_.head_dim_qk, &Offsets(kQueryOffsets)->k, unit.num_rows);
  }

  __device__ __forceinline__ void CopyQueries(const WorkUnit& unit, int n) const {
    if constexpr (Traits::kArrivesAsFp8) {
      if (p_.q_dtype != DType::kBFloat16) shared_.query_scales_of(n)[thread_] = 1.0f;
      if (HasNarrowQueries()) {
        if (p_.q_is_aligned) {
          CopyQueryRows<NarrowQueryRows>(unit, n);
        } else {
          GatherNarrowQueries(unit, n);
        }
        return;
      }
    }
    if (p_.q_is_aligned) {
      CopyQueryRows<QueryRows>(unit, n);
    } else {
      LoadQueries<Traits, kThreads>(p_, unit, shared_.q(n), thread_);  // 16-bit, unconverted
      // ConvertCopied() converts rows that other warps have loaded.
      if constexpr (Traits::kArrivesAsFp8) Sync();
    }
  }

  // Loads fp8 queries that are not in whole chunks.
  __device__ __forceinline__ void GatherNarrowQueries(const WorkUnit& unit, int n) const {
    const int chunk = NarrowQueryRows::Chunk(thread_);
    const int first_dim = DimOf<NarrowQueryRows>(0);
#pragma unroll 1
    for (int pass = 0; pass < NarrowQueryRows::kPasses; ++pass) {
      const int row = NarrowQueryRows::Row(thread_) + pass * NarrowQueryRows::kRowsPerPass;
      const bool is_there = row < unit.num_rows;
      const TileRow tile_row = RowAt(p_, unit, is_there ? row : 0);
      const uint8_t* const q = static_cast<const uint8_t*>(p_.q) +
                               tile_row.token * p_.q_token_stride +
                               tile_row.q_head * p_.q_head_stride;
      uint32_t words[4] = {};
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int dim = first_dim + e;
        if (is_there && dim < p_.head_dim_qk) words[e / 4] |= uint32_t{q[dim]} << (e % 4 * 8);
      }
      StoreShared16(SharedAddress(shared_.q(n)) + NarrowQueryRows::ArrivalOf(row, chunk),
                    {words[0], words[1], words[2], words[3]});
    }
  }

  // Copies the queries, keys and values of unit n. `step`: the unit's first KV tile, counted over
  // all units. Prepares the next unit after the copies of two KV tiles of keys and one of values,
  // or after the last copy if the unit has a single KV tile. If there is a single query stage, the
  // previous unit occupies it until its results are written; then these keys and values are copied
  // before the queries.
  __device__ __forceinline__ void LoadUnit(const CtaUnits& units, int n, int step) {
    const WorkUnit& unit = shared_.unit(n).unit;
    const RowLookup places = PlacesOf(unit.item);
    const auto k = ChunksOf<KeyRows>(p_.k, unit.kv_head, p_.head_dim_qk);
    const auto v = ChunksOf<ValueRows>(p_.v, unit.kv_head, p_.head_dim_v);
    auto* const stages = shared_.attention.tiles.stages[0];

    int first = unit.item.key_begin;
    int num_keys = unit.item.key_end - first;  // in this KV tile and later ones
    const auto copy_values = [&](int at, int keys_left) {
      AwaitRoom(shared_.values, at);
      const uint4* const tile = stages[at % Traits::kStages].v();
      CopyRows<ValueRows>(tile, v, p_.head_dim_v, &Offsets(at % 2)->v, keys_left);
      EndCopy(shared_.values, at, tile);
    };
    // `i`: index of the KV tile in the unit.
    const auto copy_keys = [&](int at, int i, int keys_left) {
      __syncwarp();  // all lanes have read these offsets for an earlier KV tile
      NotePlace(places, i, first, Offsets(at % 2));
      AwaitRoom(shared_.keys, at);
      const uint4* const tile = stages[at % Traits::kStages].k();
      CopyRows<KeyRows>(tile, k, p_.head_dim_qk, &Offsets(at % 2)->k, keys_left);
      EndCopy(shared_.keys, at, tile);
    };

    const bool has_keys = num_keys > 0;
    const auto copy_queries = [&] {
      AwaitRoom(shared_.queries, n);
      if (has_keys) CopyQueries(unit, n);
      EndCopy(shared_.queries, n, shared_.q(n), n);
    };
    if (kQueriesAhead) copy_queries();
    if (has_keys) copy_keys(step, 0, num_keys);
    bool is_next_prepared = false;
    const auto prepare_next = [&] {
      if (is_next_prepared) return;
      is_next_prepared = true;
      if (!kQueriesAhead) copy_queries();
      if (n + 1 < units.count()) Prepare(units, n + 1);
    };
#pragma unroll 1
    for (int i = 1; num_keys > Traits::kKeys; num_keys -= Traits::kKeys, ++step, ++i) {
      first += Traits::kKeys;
      FetchBlock(places, i + 1, first + Traits::kKeys);
      copy_keys(step + 1, i, num_keys - Traits::kKeys);
      copy_values(step, num_keys);
      prepare_next();
    }
    if (num_keys > 0) copy_values(step, num_keys);
    const bool is_next_last = !is_next_prepared;
    prepare_next();
    // Waits for the next unit's first block table entries, which are read next.
    if (!kQueriesAhead && is_next_last) Announce<0>();
  }

  const AttentionKernelParams& p_;
  WarpgroupShared<Traits>& shared_;
  const int thread_;  // index in the warpgroup
  bool is_dealt_;     // whether the schedule is round-robin (attention/tile_schedule/cta_units.h)
  // The full barrier of the copied tile that has not been announced, or null.
  Barrier* copied_ = nullptr;
  uint32_t copied_tile_;  // a SharedAddress()
  int copied_queries_;    // the unit if the tile holds queries, or -1
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LOADER_CUH_
