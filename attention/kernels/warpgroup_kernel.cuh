// Attention for many queries a row on Hopper: tier 2, for 16-bit K and V that are loaded as they are.
//
// Algorithm. That of attention_kernel.cuh, over the same items, with products by whole warpgroups as
// in FlashAttention-3 (Shah et al. 2024): while the tensor cores work on P V of one step and Q K^T of
// the next, the other warpgroup weighs its logits. Pages are small, so every thread copies chunks of
// 16 bytes (cp.async) from wherever the block table says, two steps ahead; a barrier that threads
// arrive at early and wait for late lets the warpgroups drift by half a step.
//
//   step i      wait until V(i), K(i + 1) are there
//               start S = Q K(i + 1)^T, out += P V(i); start copies of V(i + 1), K(i + 2)
//               when S is there: logits, mask, P of step i + 1
//               when out is there: rescale it; arrive
//
// Bound. Tensor cores: 4 x rows x keys x head_dim FLOP, a tile of 128 rows an SM at a time.
//
// Steps of which some row does not see every key are masked; of these, V rows that no row sees are
// zeroed before the product, so that memory which no query sees may hold NaN.

#ifndef ATTENTION_KERNELS_WARPGROUP_KERNEL_CUH_
#define ATTENTION_KERNELS_WARPGROUP_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/kernels/attention_kernel.cuh"
#include "attention/kernels/warpgroup_products.cuh"
#include "attention/kernels/warpgroup_results.cuh"
#include "attention/kernels/warpgroup_traits.cuh"

namespace reprise {

// Arrive early, wait late: a barrier of shared memory. Phases alternate between 0 and 1.
class SplitBarrier {
 public:
  __device__ __forceinline__ explicit SplitBarrier(uint64_t* storage)
      : address_(SharedAddress(storage)) {}

  __device__ __forceinline__ void Init(int num_threads) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(address_), "r"(num_threads)
                 : "memory");
  }
  __device__ __forceinline__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(address_) : "memory");
  }
  __device__ __forceinline__ void Wait(int phase) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}\n" ::"r"(address_),
        "r"(phase)
        : "memory");
  }

 private:
  uint32_t address_;
};

template <typename Traits>
struct WarpgroupShared {
  AttentionShared<Traits> attention;
  WarpView views[Traits::kWarpsM];
  uint32_t seen[2][Traits::kKeys / 32];  // keys of a masked step that some row sees
  uint64_t barrier;
};

// Copies this thread's chunks of K and V, 16 threads or 8 a row.
template <typename Traits>
class WarpgroupLoader {
 public:
  __device__ __forceinline__ WarpgroupLoader(const AttentionKernelParams& p, const WorkUnit& unit)
      : chunk_(threadIdx.x % Traits::kKeyChunks), row_(threadIdx.x / Traits::kKeyChunks) {
    const int dim = chunk_ * Traits::kChunk;
    k_there_ = dim < p.head_dim_qk;
    v_there_ = dim < p.head_dim_v;
    k_ = static_cast<const char*>(p.k.data) +
         (unit.kv_head * p.k.head_stride + (k_there_ ? DimOffset(p.k, dim) : 0)) * 2;
    v_ = static_cast<const char*>(p.v.data) +
         (unit.kv_head * p.v.head_stride + (v_there_ ? DimOffset(p.v, dim) : 0)) * 2;
    place_ = Traits::ChunkAt(row_, chunk_) * 16;
  }

  // REQUIRES: p.q_is_aligned.
  __device__ __forceinline__ void LoadQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                              const uint4* to) const {
    const uint32_t address = SharedAddress(to) + place_;
    const char* const q = static_cast<const char*>(p.q);
#pragma unroll 2
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kRowsPerPass + row_;
      const bool is_there = k_there_ && row < unit.num_rows;
      const TileRow tile_row = RowAt(p, unit, is_there ? row : 0);
      const int64_t at = tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride +
                         chunk_ * Traits::kChunk;
      CopyAsync16(address + pass * kRowsPerPass * 128, is_there ? q + at * 2 : q, is_there);
    }
  }

  // `num_keys`: of the item, from the step's first on.
  __device__ __forceinline__ void LoadKeys(const uint4* to, const KeyOffsets* offsets,
                                           int num_keys) const {
    const uint32_t address = SharedAddress(to) + place_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kRowsPerPass + row_;
      CopyAsync16(address + pass * kRowsPerPass * 128, k_ + offsets[row].k,
                  k_there_ && row < num_keys);
    }
  }

  __device__ __forceinline__ void LoadValues(const uint4* to, const KeyOffsets* offsets,
                                             int num_keys) const {
    const uint32_t address = SharedAddress(to) + place_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = pass * kRowsPerPass + row_;
      CopyAsync16(address + pass * kRowsPerPass * 128, v_ + offsets[row].v,
                  v_there_ && row < num_keys);
    }
  }

 private:
  static constexpr int kRowsPerPass = Traits::kThreads / Traits::kKeyChunks;
  static constexpr int kPasses = Traits::kKeys / kRowsPerPass;
  static_assert(kRowsPerPass % 8 == 0, "the permutation is the same at every pass");

  int chunk_, row_;
  bool k_there_, v_there_;
  const char* k_;
  const char* v_;
  uint32_t place_;
};

// What all rows of the tile see together, from what each warp's do. For all threads.
template <typename Traits>
__device__ __forceinline__ WarpView ViewOfTile(const QueryRow (&rows)[2], WarpView* views) {
  const WarpView own = ViewOf(rows);
  if (threadIdx.x % 32 == 0) views[threadIdx.x / 32] = own;
  __syncthreads();
  WarpView all = views[0];
#pragma unroll
  for (int w = 1; w < Traits::kWarpsM; ++w) {
    const WarpView& view = views[w];
    all.has_rows |= view.has_rows;
    all.first_seen_by_all = max(all.first_seen_by_all, view.first_seen_by_all);
    all.last_seen_by_all = min(all.last_seen_by_all, view.last_seen_by_all);
    all.first_seen_by_any = min(all.first_seen_by_any, view.first_seen_by_any);
    all.last_seen_by_any = max(all.last_seen_by_any, view.last_seen_by_any);
  }
  return all;
}

// Zeroes V rows of a masked step that no row of the tile sees.
template <typename Traits>
__device__ __forceinline__ void ZeroUnseenValues(uint4* v, const uint32_t* seen) {
  for (int at = threadIdx.x; at < Traits::kKeys * Traits::kValueChunks; at += Traits::kThreads) {
    const int key = at / Traits::kValueChunks;
    if (seen[key / 32] >> key % 32 & 1) continue;
    v[Traits::ChunkAt(key, at % Traits::kValueChunks)] = {0, 0, 0, 0};
  }
}

template <typename Traits>
class WarpgroupAttention {
 public:
  using Element = typename Traits::Element;

  __device__ __forceinline__ WarpgroupAttention(const AttentionKernelParams& p,
                                                const WorkUnit& unit,
                                                WarpgroupShared<Traits>& shared)
      : p_(p), unit_(unit), shared_(shared) {}

  // All steps of the item. `phase`: of the barrier; kept from unit to unit.
  __device__ __forceinline__ void Attend(OnlineSoftmax<Traits>& softmax, int& phase) {
    AttentionShared<Traits>& shared = shared_.attention;
    const WorkItem& item = unit_.item;
    const int first = item.key_begin;
    const int num_steps = (item.key_end - first + Traits::kKeys - 1) / Traits::kKeys;
    auto* const offsets = shared.offsets[0];
    auto* const stages = shared.tiles.stages[0];
    const KeyPlaces<Traits> places(p_, item, threadIdx.x);
    const WarpgroupLoader<Traits> loader(p_, unit_);
    const SplitBarrier barrier(&shared_.barrier);

    if (num_steps == 0) return;
    KeyPlace first_places[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) first_places[i] = places.Find(first + i * Traits::kKeys);
    if (p_.q_is_aligned) {
      loader.LoadQueries(p_, unit_, shared.tiles.q);
    } else {
      LoadQueries<Traits>(p_, unit_, shared.tiles.q);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) places.Note(offsets[i], first_places[i]);
    __syncthreads();
    loader.LoadKeys(stages[0].k(), offsets[0], item.key_end - first);
    CommitCopies();
    loader.LoadValues(stages[0].v(), offsets[0], item.key_end - first);
    loader.LoadKeys(stages[1].k(), offsets[1], item.key_end - first - Traits::kKeys);
    CommitCopies();

    const int lane_row = WarpRow<Traits>() + threadIdx.x % 32 / 4;
    const QueryRow rows[2] = {LoadQueryRow(p_, unit_, lane_row),
                              LoadQueryRow(p_, unit_, lane_row + 8)};
    const WarpView view = ViewOfTile<Traits>(rows, shared_.views);
    // Rows that are not there have a scale of 0, which does no harm.
    is_plain_ = p_.softcap == 0.0f && p_.alibi_slopes == nullptr &&
                __all_sync(kFullWarp, rows[0].logit_scale >= 0.0f && rows[1].logit_scale >= 0.0f);
    WaitForCopies<1>();  // the queries and K(0)
    ShowToProducts();
    __syncthreads();

    if (threadIdx.x / 128 * 64 >= unit_.num_rows) {
      CarrySteps(first, num_steps, view, places, loader, phase);
      return;
    }
    float s[Traits::kKeyTiles][4];
    uint32_t p[Traits::kKeys / 16][4];
    float rescale[2];
    bool is_masked = IsMasked(view, first);
    StartLogits(stages[0].k(), s);
    WaitForProducts<0>();
    Weigh(rows, is_masked, first, 0, s, softmax, rescale);
    PackWeights(s, p);
    WaitForCopies<0>();
    ShowToProducts();
    barrier.Arrive();

#pragma unroll 1
    for (int i = 0; i + 1 < num_steps; ++i) {
      const int stage = i % 2;
      const int step_first = first + i * Traits::kKeys;
      barrier.Wait(phase);
      phase ^= 1;
      if (is_masked) ZeroAndMeet(stages[stage].v(), i % 2);
      StartLogits(stages[stage ^ 1].k(), s);
      StartSum(stages[stage].v(), p, softmax.out);
      // Nobody reads these any more: all have passed Q K(i)^T and P V(i - 1).
      const int num_keys = item.key_end - step_first;
      loader.LoadValues(stages[stage ^ 1].v(), offsets[(i + 1) % 3], num_keys - Traits::kKeys);
      loader.LoadKeys(stages[stage].k(), offsets[(i + 2) % 3], num_keys - 2 * Traits::kKeys);
      CommitCopies();
      const KeyPlace place = places.Find(step_first + 3 * Traits::kKeys);
      WaitForProducts<1>();
      is_masked = IsMasked(view, step_first + Traits::kKeys);
      Weigh(rows, is_masked, step_first + Traits::kKeys, (i + 1) % 2, s, softmax, rescale);
      WaitForProducts<0>();
      places.Note(offsets[i % 3], place);
      WaitForCopies<0>();
      ShowToProducts();
      barrier.Arrive();
      PackWeights(s, p);
      softmax.Rescale(rescale);
    }
    barrier.Wait(phase);
    phase ^= 1;
    const int last = (num_steps - 1) % 2;
    if (is_masked) ZeroAndMeet(stages[last].v(), last);
    StartSum(stages[last].v(), p, softmax.out);
    WaitForProducts<0>();
  }

 private:
  // The part of a warpgroup that has no rows: it copies, and meets the other.
  __device__ __forceinline__ void CarrySteps(int first, int num_steps, const WarpView& view,
                                             const KeyPlaces<Traits>& places,
                                             const WarpgroupLoader<Traits>& loader,
                                             int& phase) const {
    auto* const offsets = shared_.attention.offsets[0];
    auto* const stages = shared_.attention.tiles.stages[0];
    const SplitBarrier barrier(&shared_.barrier);
    WaitForCopies<0>();
    ShowToProducts();
    barrier.Arrive();
#pragma unroll 1
    for (int i = 0; i < num_steps; ++i) {
      const int stage = i % 2;
      const int step_first = first + i * Traits::kKeys;
      barrier.Wait(phase);
      phase ^= 1;
      if (IsMasked(view, step_first)) ZeroAndMeet(stages[stage].v(), stage);
      if (i + 1 == num_steps) break;
      const int num_keys = unit_.item.key_end - step_first;
      loader.LoadValues(stages[stage ^ 1].v(), offsets[(i + 1) % 3], num_keys - Traits::kKeys);
      loader.LoadKeys(stages[stage].k(), offsets[(i + 2) % 3], num_keys - 2 * Traits::kKeys);
      CommitCopies();
      const KeyPlace place = places.Find(step_first + 3 * Traits::kKeys);
      places.Note(offsets[i % 3], place);
      WaitForCopies<0>();
      ShowToProducts();
      barrier.Arrive();
    }
  }

  static constexpr int kRowsBytes = 64 * Traits::kPanelChunks * 16;  // of a warpgroup, in a panel

  // The tile of Q that the warpgroup multiplies.
  __device__ __forceinline__ uint32_t Queries() const {
    return SharedAddress(shared_.attention.tiles.q) + threadIdx.x / 128 * kRowsBytes;
  }

  // s = Q K^T.
  __device__ __forceinline__ void StartLogits(const uint4* k,
                                              float (&s)[Traits::kKeyTiles][4]) const {
    const uint64_t a = RowsTile(Queries());
    const uint64_t b = RowsTile(SharedAddress(k));
    FenceProducts();
#pragma unroll
    for (int d = 0; d < Traits::kHeadDimQk / 16; ++d) {
      const int at = (d / 4 * Traits::kPanelBytes + d % 4 * 32) / 16;
      WarpgroupProduct<Element, Traits::kKeys>::Rows(s, a + at, b + at, d == 0);
    }
    CommitProducts();
  }

  // out += P V.
  __device__ __forceinline__ void StartSum(const uint4* v,
                                           const uint32_t (&p)[Traits::kKeys / 16][4],
                                           float (&out)[Traits::kOutTiles][4]) const {
    const uint64_t b = ColumnsTile(SharedAddress(v), Traits::kPanelBytes);
    FenceProducts();
#pragma unroll
    for (int k = 0; k < Traits::kKeys / 16; ++k) {
      WarpgroupProduct<Element, Traits::kHeadDimV>::Columns(out, p[k], b + k * (16 * 128 / 16));
    }
    CommitProducts();
  }

  __device__ __forceinline__ static void PackWeights(const float (&s)[Traits::kKeyTiles][4],
                                                     uint32_t (&p)[Traits::kKeys / 16][4]) {
#pragma unroll
    for (int k = 0; k < Traits::kKeys / 16; ++k) {
      p[k][0] = Pack<Element>(s[2 * k][0], s[2 * k][1]);
      p[k][1] = Pack<Element>(s[2 * k][2], s[2 * k][3]);
      p[k][2] = Pack<Element>(s[2 * k + 1][0], s[2 * k + 1][1]);
      p[k][3] = Pack<Element>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
  }

  // Whether some row of the tile does not see every key of the step at local key `first`.
  __device__ __forceinline__ bool IsMasked(const WarpView& view, int first) const {
    return ViewStep(p_, unit_, view, first, Traits::kKeys) != StepView::kAll;
  }

  // From products to weights.
  __device__ __forceinline__ void Weigh(const QueryRow (&rows)[2], bool is_masked, int first,
                                        int parity, float (&s)[Traits::kKeyTiles][4],
                                        OnlineSoftmax<Traits>& softmax, float (&rescale)[2]) const {
    if (!is_masked && is_plain_) {
      const float scale[2] = {rows[0].logit_scale * kLog2E, rows[1].logit_scale * kLog2E};
      softmax.WeighScaled(s, scale, rescale);
      return;
    }
    ScaleLogits<Traits>(p_, rows, s);
    if (is_masked || p_.alibi_slopes) {
      const uint32_t seen = MaskLogits<Traits>(p_, unit_, rows, first, s);
      if (is_masked) NoteSeen(seen, parity);
    }
    softmax.Weigh(s, rescale);
  }

  // `seen`: bit n * 2 + j for column n * 8 + l % 4 * 2 + j.
  __device__ __forceinline__ void NoteSeen(uint32_t seen, int parity) const {
    const int lane = threadIdx.x % 32;
    if (lane >= 4) return;
#pragma unroll
    for (int word = 0; word < Traits::kKeys / 32; ++word) {
      uint32_t keys = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t pair = seen >> (word * 8 + n * 2) & 3;
        keys |= pair << (n * 8 + lane * 2);
      }
      atomicOr(&shared_.seen[parity][word], keys);
    }
  }

  // All have noted what they see of the step. Leaves the notes empty.
  __device__ __forceinline__ void ZeroAndMeet(uint4* v, int parity) const {
    ZeroUnseenValues<Traits>(v, shared_.seen[parity]);
    ShowToProducts();
    __syncthreads();
    if (threadIdx.x < Traits::kKeys / 32) shared_.seen[parity][threadIdx.x] = 0;
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  WarpgroupShared<Traits>& shared_;
  bool is_plain_ = false;  // logits are products times a scale, nothing more
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    WarpgroupKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Traits>*>(shared_memory);
  if (threadIdx.x == 0) SplitBarrier(&shared.barrier).Init(Traits::kThreads);
  if (threadIdx.x < 2 * Traits::kKeys / 32) shared.seen[threadIdx.x / 4][threadIdx.x % 4] = 0;
  int phase = 0;
  ForUnits<Traits>(p, shared.attention, [&](WorkUnit& unit) {
    OnlineSoftmax<Traits> softmax;
    WarpgroupAttention<Traits>(p, unit, shared).Attend(softmax, phase);
    FinishWarpgroupUnit<Traits>(p, unit, softmax, shared.attention);
  });
}

template <DType kDType, int kHeadDim>
int WarpgroupSharedBytes() {
  return sizeof(WarpgroupShared<WarpgroupTraits<kDType, kHeadDim>>);
}

template <DType kDType, int kHeadDim>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  using Traits = WarpgroupTraits<kDType, kHeadDim>;
  constexpr int kSharedBytes = sizeof(WarpgroupShared<Traits>);
  const auto kernel = &WarpgroupKernel<Traits>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<params.work.num_ctas, Traits::kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WARPGROUP_KERNEL_CUH_
