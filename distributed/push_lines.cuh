// Device functions of the one-shot push all-reduce, for kernels that fuse it with other work.
//
//   GridDependencySync();
//   const PushAllReduce sum(args);
//   for (each line i of a part) sum.Push(i);                  // to all other ranks
//   PushLine lines[2] = {own line i, own line i + 1};
//   sum.Replace<PushType::kBFloat16>(i, lines);               // with the sum over all ranks
//   __syncthreads();
//   if (threadIdx.x == 0) sum.End(number of CTAs);
//
// Every line of the message must be pushed once, by any thread. It may be read any number of times.
// If a CTA reads lines before other CTAs of the grid have pushed theirs, all CTAs of the grid must
// be co-resident on the device. All kernels use the same message layout, so ranks may run different
// kernels for one sum.

#ifndef REPRISE_DISTRIBUTED_PUSH_LINES_CUH_
#define REPRISE_DISTRIBUTED_PUSH_LINES_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "reprise/distributed/push_all_reduce_args.h"

namespace reprise {

struct alignas(kPushDataBytes) PushLine {
  uint32_t data[2];
};

// Accumulates a line's elements over ranks in float32.
template <PushType kType>
struct PushLineSum;

template <>
struct PushLineSum<PushType::kFloat32> {
  float values[2] = {};

  __device__ void Add(const PushLine& line) {
    for (int i = 0; i < 2; ++i) values[i] += __uint_as_float(line.data[i]);
  }
  __device__ PushLine Rounded() const {
    return {{__float_as_uint(values[0]), __float_as_uint(values[1])}};
  }
};

template <>
struct PushLineSum<PushType::kBFloat16> {
  float values[4] = {};

  // The first element of a pair is in the lower half of its word.
  __device__ void Add(const PushLine& line) {
    for (int i = 0; i < 2; ++i) {
      values[2 * i] += __uint_as_float(line.data[i] << 16);
      values[2 * i + 1] += __uint_as_float(line.data[i] & 0xffff0000u);
    }
  }
  __device__ PushLine Rounded() const {
    PushLine line;
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      line.data[i] = static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
                     static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
    }
    return line;
  }
};

// One all-reduce. `args` must outlive it.
class PushAllReduce {
 public:
  // REQUIRES: called after GridDependencySync() and before any thread of the grid calls End().
  __device__ explicit PushAllReduce(const PushAllReduceArgs& args)
      : args_(args), num_sums_(Load(args.state + kPushNumSums)) {}

  // Writes line `i` of this rank's data to the inboxes of all other ranks.
  __device__ void Push(int64_t i) const {
    const PushLine own = static_cast<const PushLine*>(args_.data)[i];
    for (int rank = 0; rank < args_.world; ++rank) {
      if (rank == args_.rank) continue;
      asm volatile(
          "st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(Place(rank, args_.rank, i)),
          "r"(own.data[0]), "r"(flag()), "r"(own.data[1])
          : "memory");
    }
  }

  // Replaces this rank's lines i, i + 1, ... with the sums over all ranks, in rank order. Waits for
  // the lines of the other ranks. If kPushGivesUp is set, stops waiting and leaves undefined sums.
  template <PushType kType, int kLines>
  __device__ void Replace(int64_t i, PushLine (&lines)[kLines]) const {
    PushLineSum<kType> sums[kLines];
    for (int rank = 0; rank < args_.world; ++rank) {
      PushLine summands[kLines];
      if (rank == args_.rank) {
        for (int line = 0; line < kLines; ++line) summands[line] = lines[line];
      } else if (!Read(Place(args_.rank, rank, i), summands)) {
        break;
      }
      for (int line = 0; line < kLines; ++line) sums[line].Add(summands[line]);
    }
    for (int line = 0; line < kLines; ++line) lines[line] = sums[line].Rounded();
  }

  // Called by one thread of each CTA after all threads of the CTA have finished with the sum. The
  // last CTA increments the number of sums.
  __device__ void End(unsigned num_ctas) const {
    if (atomicAdd(args_.state + kPushNumEndedCtas, 1u) + 1 < num_ctas) return;
    volatile uint32_t* const state = args_.state;
    state[kPushNumEndedCtas] = 0;
    // 0 is the flag of lines that were never written.
    state[kPushNumSums] = flag() == UINT32_MAX ? 1 : flag();
  }

 private:
  // Number of polls between two checks of kPushGivesUp.
  static constexpr int kPollsAtOnce = 1024;

  __device__ static uint32_t Load(const volatile uint32_t* place) { return *place; }

  __device__ uint32_t flag() const { return num_sums_ + 1; }

  // Returns the address of line `i` from `sender` in the inbox of `owner`, which has two slots per
  // sender.
  __device__ std::byte* Place(int owner, int sender, int64_t i) const {
    const int64_t message_bytes = args_.max_bytes / kPushDataBytes * kPushLineBytes;
    const int64_t turn = num_sums_ % 2;
    return static_cast<std::byte*>(args_.inboxes[owner]) +
           (turn * args_.world + sender) * message_bytes + i * kPushLineBytes;
  }

  // Waits for lines of this sum. Returns false if kPushGivesUp was set.
  template <int kLines>
  __device__ bool Read(const std::byte* place, PushLine (&lines)[kLines]) const {
    while (true) {
      for (int poll = 0; poll < kPollsAtOnce; ++poll) {
        bool are_there = true;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
          uint32_t flags[2];
          asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(lines[line].data[0]), "=r"(flags[0]), "=r"(lines[line].data[1]),
                         "=r"(flags[1])
                       : "l"(place + line * kPushLineBytes)
                       : "memory");
          are_there &= flags[0] == flag() && flags[1] == flag();
        }
        if (are_there) return true;
      }
      if (Load(args_.state + kPushGivesUp) != 0) return false;
    }
  }

  const PushAllReduceArgs& args_;
  uint32_t num_sums_;
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PUSH_LINES_CUH_
