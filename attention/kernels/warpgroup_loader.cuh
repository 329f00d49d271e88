// The warpgroup that copies, for those that compute: units, their queries, and keys and values, as
// far ahead as there is room.
//
// Pages are small and may have any layout, so each thread copies chunks of 16 bytes (cp.async) from
// wherever the block table says. Every warp finds the places of the rows that it copies itself, one
// a lane, and notes them for the lanes that copy their chunks. The table is read a step before its
// places are needed.
//
// The tensor cores see what was copied once the threads that copied it have waited for it and shown
// it to them. To keep copies under way meanwhile, a thread does so for a tile when it has started
// to copy the next; or at once, if there is no room for the next.

#ifndef ATTENTION_KERNELS_WARPGROUP_LOADER_CUH_
#define ATTENTION_KERNELS_WARPGROUP_LOADER_CUH_

#include <climits>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/key_places.cuh"
#include "attention/kernels/query_loader.cuh"
#include "attention/kernels/warpgroup_products.cuh"
#include "attention/kernels/warpgroup_shared.cuh"
#include "attention/kernels/warpgroup_unit.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

template <typename Traits>
class WarpgroupLoader {
 public:
  __device__ __forceinline__ WarpgroupLoader(const AttentionKernelParams& p,
                                             WarpgroupShared<Traits>& shared)
      : p_(p), shared_(shared), thread_(threadIdx.x - Traits::kThreads) {
    const int chunk = thread_ % Traits::kKeyChunks;
    dim_ = chunk * Traits::kChunk;
    place_ = Traits::ChunkAt(thread_ / Traits::kKeyChunks, chunk) * 16;
  }

  // All units of the CTA.
  __device__ __forceinline__ void Load() {
    const ColumnUnits units(p_.work);
    int step = 0;
    int num_indirect = 0;
    item_ = PieceOf(p_.work.column_first + blockIdx.x / p_.work.heads_per_column);
    if (units.count() > 0) Prepare(units, 0);
#pragma unroll 1
    for (int n = 0; n < units.count(); ++n) {
      const PreparedUnit<Traits>& prepared = shared_.unit(n);
      LoadUnit(units, n, step);
      step += prepared.num_steps;
      if (!prepared.writes_directly) {
        Announce<0>();
        shared_.results_are_out.Wait(num_indirect++);
      }
    }
    Announce<0>();
  }

 private:
  static constexpr int kThreads = Traits::kLoaderThreads;
  static constexpr int kItemPieces = sizeof(WorkItem) / 16;
  static constexpr int kRowsPerPass = kThreads / Traits::kKeyChunks;
  static constexpr int kRowsOfWarp = 32 / Traits::kKeyChunks;  // in a pass
  static constexpr int kPasses = Traits::kKeys / kRowsPerPass;
  static_assert(kRowsPerPass % 8 == 0, "the permutation is the same at every pass");
  static_assert(kPasses * kRowsOfWarp == 32, "a lane finds the place of one row");
  static_assert(Traits::kRows == Traits::kKeys, "queries are copied as keys are");
  static_assert(Traits::kRows == kThreads, "a thread prepares one row");

  // Offsets of rows: of keys and values of steps in turns, and of the queries.
  static constexpr int kQueryOffsets = 2;
  __device__ __forceinline__ KeyOffsets* Offsets(int i) const {
    return shared_.attention.offsets[0][i];
  }

  __device__ __forceinline__ void Meet() const { MeetAt(Traits::kLoaderBarrier, kThreads); }

  // The part of an item that this thread brings to shared memory.
  __device__ __forceinline__ uint4 PieceOf(const WorkItem* item) const {
    if (thread_ >= kItemPieces) return {};
    return __ldg(reinterpret_cast<const uint4*>(item) + thread_);
  }

  // The row whose place this lane finds.
  __device__ __forceinline__ int OwnRow() const {
    const int lane = thread_ % 32;
    return lane / kRowsOfWarp * kRowsPerPass + thread_ / 32 * kRowsOfWarp + lane % kRowsOfWarp;
  }

  // This thread's chunk of the row of a tensor at offset 0; some other where its dims are not
  // there.
  static __device__ __forceinline__ const char* ChunkOf(const KvView& view, int kv_head, int dim,
                                                        int head_dim) {
    return static_cast<const char*>(view.data) +
           (kv_head * view.head_stride + (dim < head_dim ? DimOffset(view, dim) : 0)) * 2;
  }

  // Copies rows to a tile; zeros in the place of rows from `num_rows` on, and of dims from
  // `head_dim` on. `offsets`: one of two for each row, in bytes.
  __device__ __forceinline__ void CopyRows(const uint4* to, const char* chunk, int head_dim,
                                           const int64_t* offsets, int num_rows) const {
    const uint32_t address = SharedAddress(to) + place_;
    const int row = thread_ / Traits::kKeyChunks;
    const int end = dim_ < head_dim ? num_rows - row : 0;
    // So many offsets are read at a time.
    constexpr int kBatch = 8;
#pragma unroll
    for (int pass = 0; pass < kPasses; pass += kBatch) {
      const char* source[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        source[i] = chunk + offsets[(row + (pass + i) * kRowsPerPass) * 2];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int first = (pass + i) * kRowsPerPass;
        CopyAsync16(address + first * 128, source[i], first < end);
      }
    }
  }

  // Says that the tiles copied before are there, all but the `kPending` (0, 1) newest.
  template <int kPending>
  __device__ __forceinline__ void Announce() {
    if (copied_ == nullptr) return;
    WaitForCopies<kPending>();
    ShowToProducts();
    copied_->Arrive();
    copied_ = nullptr;
  }

  // Before fill n of a ring is copied.
  template <typename Ring>
  __device__ __forceinline__ void AwaitRoom(Ring& ring, int n) {
    if (!ring.IsFree(n)) {
      Announce<0>();
      ring.WaitUntilFree(n);
    }
    __syncwarp();  // and the places that are noted are seen
  }
  // After it.
  template <typename Ring>
  __device__ __forceinline__ void EndCopy(Ring& ring, int n) {
    CommitCopies();
    Announce<1>();
    copied_ = &ring.there(n);
  }

  // Finds out all about unit n.
  __device__ __forceinline__ void Prepare(const ColumnUnits& units, int n) {
    PreparedUnit<Traits>& prepared = shared_.unit(n);
    WorkUnit& unit = prepared.unit;
    if (thread_ < kItemPieces) reinterpret_cast<uint4*>(&unit.item)[thread_] = item_;
    Meet();
    const KeyPlaces<Traits> places(p_, unit.item, OwnRow());
    place_of_first_ = places.Find(unit.item.key_begin);
    place_of_second_ = places.Find(unit.item.key_begin + Traits::kKeys);
    if (n + 1 < units.count()) item_ = PieceOf(units.ItemOf(n + 1));
    if (thread_ == 0) {
      CompleteUnit<Traits>(p_, units.HeadOf(n), unit);
      prepared.num_steps = NumSteps<Traits>(unit.item);
      prepared.is_special = IsSpecial(p_, unit);
      prepared.writes_directly = WritesDirectly<Traits>(p_, unit);
    }
    Meet();
    const PreparedRow row = PrepareRow(p_, unit, thread_);
    prepared.rows[thread_] = row;
    KeyRange seen = row.seen;
    if (row.token < 0) seen.end = INT_MAX;
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      seen.begin = max(seen.begin, __shfl_xor_sync(kFullWarp, seen.begin, distance));
      seen.end = min(seen.end, __shfl_xor_sync(kFullWarp, seen.end, distance));
    }
    if (thread_ % 16 == 0) prepared.seen_by_all[thread_ / 16] = seen;
    NoteQuery(unit);
  }

  // Where this lane's row of q is.
  __device__ __forceinline__ void NoteQuery(const WorkUnit& unit) const {
    const int row = OwnRow();
    const TileRow tile_row = RowAt(p_, unit, row < unit.num_rows ? row : 0);
    Offsets(kQueryOffsets)[row].k =
        (tile_row.token * p_.q_token_stride + tile_row.q_head * p_.q_head_stride) * 2;
  }

  __device__ __forceinline__ void CopyQueries(const WorkUnit& unit, int n) const {
    if (!p_.q_is_aligned) {
      LoadQueries<Traits, kThreads>(p_, unit, shared_.q(n), thread_);
      return;
    }
    const int dim = dim_ < p_.head_dim_qk ? dim_ : 0;
    CopyRows(shared_.q(n), static_cast<const char*>(p_.q) + dim * 2, p_.head_dim_qk,
             &Offsets(kQueryOffsets)->k, unit.num_rows);
  }

  // Copies unit n, whose first step is `step`, counted over all units; and prepares the next.
  __device__ __forceinline__ void LoadUnit(const ColumnUnits& units, int n, int step) {
    const WorkUnit& unit = shared_.unit(n).unit;
    const KeyPlaces<Traits> places(p_, unit.item, OwnRow());
    const char* const k = ChunkOf(p_.k, unit.kv_head, dim_, p_.head_dim_qk);
    const char* const v = ChunkOf(p_.v, unit.kv_head, dim_, p_.head_dim_v);
    auto* const stages = shared_.attention.tiles.stages[0];

    KeyPlace place = place_of_first_;
    KeyPlace next = place_of_second_;
    int first = unit.item.key_begin;
    int num_keys = unit.item.key_end - first;  // from the step on
    const auto copy_values = [&](int at, int keys_left) {
      AwaitRoom(shared_.values, at);
      CopyRows(stages[at % Traits::kStages].v(), v, p_.head_dim_v, &Offsets(at % 2)->v, keys_left);
      EndCopy(shared_.values, at);
    };
    const auto copy_keys = [&](int at, int keys_left) {
      places.Note(Offsets(at % 2), place);
      AwaitRoom(shared_.keys, at);
      CopyRows(stages[at % Traits::kStages].k(), k, p_.head_dim_qk, &Offsets(at % 2)->k, keys_left);
      EndCopy(shared_.keys, at);
    };

    AwaitRoom(shared_.queries, n);
    if (num_keys > 0) CopyQueries(unit, n);
    EndCopy(shared_.queries, n);
    if (num_keys > 0) copy_keys(step, num_keys);
#pragma unroll 1
    for (; num_keys > Traits::kKeys; num_keys -= Traits::kKeys, ++step) {
      place = next;
      first += Traits::kKeys;
      next = places.Find(first + Traits::kKeys);
      copy_keys(step + 1, num_keys - Traits::kKeys);
      copy_values(step, num_keys);
    }
    // While there is no room for the last values yet.
    Announce<0>();
    if (n + 1 < units.count()) Prepare(units, n + 1);
    if (num_keys > 0) copy_values(step, num_keys);
  }

  const AttentionKernelParams& p_;
  WarpgroupShared<Traits>& shared_;
  const int thread_;  // of the warpgroup
  int dim_;           // the first of this thread's chunks
  uint32_t place_;    // of the first of them in a tile, in bytes
  uint4 item_;        // this thread's piece of the item of the unit to prepare next
  // Of this lane's rows of the first two steps of the unit that is prepared.
  KeyPlace place_of_first_, place_of_second_;
  Barrier* copied_ = nullptr;  // of the tile that is not announced yet
};

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WARPGROUP_LOADER_CUH_
