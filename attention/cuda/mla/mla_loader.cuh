// The producer warpgroup: copies the queries and keys of the CTA's units for the softmax and
// accumulation warpgroups, as far ahead as there are empty stages.
//
// Pages may be as small as one token, so each thread copies 16-byte chunks (cp.async) from the
// addresses that the block table gives, as in warpgroup_loader.cuh. It makes the chunks visible to
// the tensor cores after waiting for them. A warp copies the same 16 keys of every KV tile. Its
// lanes look up the addresses of these keys and exchange them; the block table is read two KV tiles
// ahead. A KV tile arrives in two parts, each a set of 64-dim panels. The parts are copied in
// order, each as soon as the accumulation warpgroup of that part has released the previous
// contents. A part is announced when the next two copies are in flight, or earlier if the producer
// has to wait for an empty stage.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_LOADER_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_LOADER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/query_loader.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"
#include "reprise/attention/cuda/mla/mla_shared.cuh"
#include "reprise/attention/tile_schedule/cta_units.h"

namespace reprise {

template <typename Traits>
class MlaLoader {
 public:
  // Number of arrivals at a full barrier: kArrivalsOfWarp per warp.
  static constexpr int kArrivals = kArrivalsOfWarp * (Traits::kLoaderThreads / 32);

  __device__ __forceinline__ MlaLoader(const AttentionKernelParams& p, MlaShared<Traits>& shared)
      : p_(p),
        shared_(shared),
        thread_(threadIdx.x - (Traits::kCtaThreads - Traits::kLoaderThreads)) {
    const int chunk = thread_ % Traits::kPanelChunks;
    panels_ = (p.head_dim_qk - chunk * Traits::kChunk + kPanelDims - 1) / kPanelDims;
    place_ = Traits::ChunkAt(FirstRow(), chunk) * 16;
  }

  // Copies the data of all units of the CTA.
  __device__ __forceinline__ void Load() {
    const CtaUnits units(p_.work, blockIdx.x);
    int step = 0;
    int num_indirect = 0;
    if (units.count() > 0) {
      Prepare(units, 0, p_.work.queue_first + blockIdx.x / p_.work.heads_per_queue);
    }
#pragma unroll 1
    for (int n = 0; n < units.count(); ++n) {
      const PreparedUnit<Traits>& prepared = shared_.unit(n).prepared;
      const bool writes_directly = prepared.writes_directly;
      step = LoadUnit(units, n, step, prepared.num_steps);
      if (!writes_directly) {
        shared_.results_are_out[num_indirect % 2].Wait(num_indirect / 2);
        ++num_indirect;
      }
    }
  }

 private:
  static constexpr int kThreads = Traits::kLoaderThreads;
  static constexpr int kItemChunks = sizeof(WorkItem) / 16;
  static constexpr int kPanelDims = Traits::kPanelChunks * Traits::kChunk;
  static constexpr int kRowsOfWarp = Traits::kKeys / (kThreads / 32);
  static constexpr int kRowsPerPass = 32 / Traits::kPanelChunks;  // per warp
  static constexpr int kPasses = kRowsOfWarp / kRowsPerPass;
  static_assert(kRowsPerPass == 4 && kPasses == 4, "Rows assumes 4 passes of 4 rows");

  __device__ __forceinline__ void Sync() const {
    NamedBarrierSync(Traits::kLoaderBarrier, kThreads);
  }

  // The row whose address this lane looks up; kKeys for lanes other than the first kRowsOfWarp.
  __device__ __forceinline__ int OwnRow() const {
    return thread_ % 32 < kRowsOfWarp ? thread_ / 32 * kRowsOfWarp + thread_ % 32 : Traits::kKeys;
  }
  // The row that this lane copies in the first pass.
  __device__ __forceinline__ int FirstRow() const {
    return thread_ / 32 * kRowsOfWarp + thread_ % 32 / Traits::kPanelChunks;
  }

  // The addresses of this lane's chunk in the rows that it copies.
  struct Rows {
    const char* at[kPasses];
    int panels[kPasses];  // panels in the row; 0: the row does not exist
  };

  // Computes the addresses from the byte offsets that the lanes have looked up. `num_rows`: rows in
  // the tile.
  __device__ __forceinline__ Rows RowsAt(const void* first, int64_t offset, int num_rows) const {
    Rows rows;
    const char* const chunk = static_cast<const char*>(first) + thread_ % Traits::kPanelChunks * 16;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int row = i * kRowsPerPass + thread_ % 32 / Traits::kPanelChunks;
      rows.at[i] = chunk + __shfl_sync(kFullWarp, static_cast<long long>(offset), row);
      rows.panels[i] = FirstRow() + i * kRowsPerPass < num_rows ? panels_ : 0;
    }
    return rows;
  }

  // Copies panels [first, first + kCount) of the rows to a tile. Absent rows and dims become zeros.
  template <int kCount>
  __device__ __forceinline__ void CopyPanels(const uint4* to, const Rows& rows, int first) const {
    const uint32_t address = SharedAddress(to) + place_ + first * Traits::kPanelBytes;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      // The other four of each eight rows have a different swizzle.
      const uint32_t row = (i % 2 == 0 ? address : address ^ 64) + i * kRowsPerPass * 128;
      const char* const from = rows.at[i] + first * 128;
#pragma unroll
      for (int panel = 0; panel < kCount; ++panel) {
        CopyAsync16(row + panel * Traits::kPanelBytes, from + panel * 128,
                    first + panel < rows.panels[i]);
      }
    }
  }

  // Announces all copied data that is not among the kPending (0, 1, 2) newest copies: waits for its
  // arrival and arrives at its full barrier. At most the two newest copies are unannounced.
  template <int kPending>
  __device__ __forceinline__ void Announce() {
    if (older_) Announce<kPending == 0 ? 1 : kPending>(older_);
    older_ = 0;
    if (kPending > 0) return;
    if (newer_) Announce<0>(newer_);
    newer_ = 0;
  }
  template <int kPending>
  __device__ __forceinline__ void Announce(uint32_t there) const {
    WaitForCopies<kPending>();
    FenceProxyAsync();
    __syncwarp();
    reinterpret_cast<Barrier*>(reinterpret_cast<char*>(&shared_) + there)->ArriveAsWarp();
  }

  // Waits until the stage of fill n of a ring is empty. If it has to wait, it first announces all
  // but the kPending (0, 1) newest copies.
  template <int kPending, typename Ring>
  __device__ __forceinline__ void AwaitRoom(Ring& ring, int n) {
    if (__all_sync(kFullWarp, ring.IsFree(n))) return;
    Announce<kPending>();
    ring.WaitUntilEmpty(n);
  }
  __device__ __forceinline__ void EndCopy(Barrier& there) {
    CommitCopies();
    Announce<2>();
    older_ = newer_;
    newer_ =
        static_cast<uint32_t>(reinterpret_cast<char*>(&there) - reinterpret_cast<char*>(&shared_));
  }

  // Prepares unit n: computes its PreparedUnit from `item`.
  __device__ __forceinline__ void Prepare(const CtaUnits& units, int n, const WorkItem* item) {
    AwaitRoom<0>(shared_.unit_ring, n);
    PreparedUnit<Traits>& prepared = shared_.unit(n).prepared;
    WorkUnit& unit = prepared.unit;
    if (thread_ < kItemChunks) {
      reinterpret_cast<uint4*>(&unit.item)[thread_] =
          __ldcg(reinterpret_cast<const uint4*>(item) + thread_);
    }
    Sync();
    if (thread_ == 0) PrepareUnit(p_, units.HeadOf(n), prepared);
    Sync();
    if (thread_ < Traits::kRows) NoteRow(p_, thread_, prepared);
    Sync();
    shared_.unit_ring.there(n).ArriveAsWarp();
  }

  __device__ __forceinline__ void CopyQueries(const WorkUnit& unit) const {
    if (!p_.q_is_aligned) {
      LoadQueries<Traits, kThreads>(p_, unit, shared_.q(), thread_);
      return;
    }
    const TileRow tile_row = RowAt(p_, unit, OwnRow() < unit.num_rows ? OwnRow() : 0);
    const int64_t offset =
        (tile_row.token * p_.q_token_stride + tile_row.q_head * p_.q_head_stride) * 2;
    CopyPanels<Traits::kPanels>(shared_.q(), RowsAt(p_.q, offset, unit.num_rows), 0);
  }

  // The byte offset of the key that this lane looks up. The block id of a key that no query sees
  // may be invalid.
  __device__ __forceinline__ int64_t OffsetOf(const KeyAddress& place) const {
    const bool is_block = static_cast<unsigned>(place.block) < static_cast<unsigned>(p_.num_blocks);
    const int block = is_block ? place.block : 0;
    return (block * p_.k.block_stride + place.token * p_.k.token_stride) * 2;
  }

  // Copies the queries and keys of unit n, and prepares the next unit. `step`: the unit's first KV
  // tile, counted over all units. Returns the next unit's first KV tile.
  __device__ __forceinline__ int LoadUnit(const CtaUnits& units, int n, int step, int num_steps) {
    const WorkUnit& unit = shared_.unit(n).prepared.unit;
    const char* const k = static_cast<const char*>(p_.k.data) + unit.kv_head * p_.k.head_stride * 2;
    const PageLookup<Traits> places(p_, unit.item, OwnRow());
    int first = unit.item.key_begin;
    KeyAddress place = places.Find(first);
    KeyAddress next = places.Find(first + Traits::kKeys);
    const auto copy_keys = [&] {
      const int64_t offset = OffsetOf(place);
      place = next;
      // Looked up before the copies, because a read waits for copies that were started before it.
      next = places.Find(first + 2 * Traits::kKeys);
      const int part = step * Traits::kParts;
      AwaitRoom<0>(shared_.keys, part);
      const Rows rows = RowsAt(k, offset, unit.item.key_end - first);
      CopyPanels<Traits::kPartPanels>(shared_.stage(step), rows, 0);
      EndCopy(shared_.keys.there(part));
      AwaitRoom<1>(shared_.keys, part + 1);
      CopyPanels<Traits::kPanels - Traits::kPartPanels>(shared_.stage(step), rows,
                                                        Traits::kPartPanels);
      EndCopy(shared_.keys.there(part + 1));
      ++step;
      first += Traits::kKeys;
    };

    AwaitRoom<0>(shared_.queries, n);
    if (num_steps > 0) CopyQueries(unit);
    EndCopy(shared_.queries.there(n));
    // Prepares the next unit before the last KV tile, whose stage is not empty yet, or after it if
    // the unit has at most two KV tiles.
    const int last = step + num_steps;
#pragma unroll 1
    for (bool is_prepared = n + 1 == units.count();;) {
      if (!is_prepared && (step == last || (num_steps > 2 && step + 1 == last))) {
        Announce<0>();
        Prepare(units, n + 1, p_.work.items + units.ItemOf(n + 1));
        is_prepared = true;
      }
      if (step == last) break;
      copy_keys();
    }
    Announce<0>();
    return step;
  }

  const AttentionKernelParams& p_;
  MlaShared<Traits>& shared_;
  const int thread_;  // index in the warpgroup
  int panels_;        // number of panels that contain this thread's chunk
  uint32_t place_;    // offset of this thread's chunk in the first panel of a tile, in bytes
  // Full barriers of the unannounced copies, as byte offsets from `shared_`; 0: no copy.
  uint32_t older_ = 0;
  uint32_t newer_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_LOADER_CUH_
