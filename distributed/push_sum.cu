// Bound: latency. A thread has one line or few; it writes them to all peers, then polls its own
// inbox. 8 KB over NVLink: the launch, which is mostly hidden (base/dependent_launch.cuh), one way
// over the link, and one poll.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/cuda_status.h"
#include "base/dependent_launch.cuh"
#include "distributed/push_sum.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxCtas = 128;
// Polls between two looks at whether the wait is given up.
constexpr int kPollsAtOnce = 1024;

enum State { kNumSums, kNumEndedCtas };

struct alignas(kPushDataBytes) Line {
  uint32_t data[2];
};

__device__ void WriteLine(void* place, const Line& line, uint32_t flag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(place), "r"(line.data[0]),
               "r"(flag), "r"(line.data[1])
               : "memory");
}

// Waits for the line of the sum `flag`. False: the wait was given up.
__device__ bool ReadLine(const void* place, uint32_t flag, volatile const uint32_t* gives_up,
                         Line& line) {
  uint32_t flags[2];
  while (true) {
    for (int poll = 0; poll < kPollsAtOnce; ++poll) {
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(line.data[0]), "=r"(flags[0]), "=r"(line.data[1]), "=r"(flags[1])
                   : "l"(place)
                   : "memory");
      if (flags[0] == flag && flags[1] == flag) return true;
    }
    if (*gives_up != 0) return false;
  }
}

template <PushType kType>
struct Sum;

template <>
struct Sum<PushType::kFloat32> {
  float values[2] = {};

  __device__ void Add(const Line& line) {
    for (int i = 0; i < 2; ++i) values[i] += __uint_as_float(line.data[i]);
  }
  __device__ Line Rounded() const {
    return {{__float_as_uint(values[0]), __float_as_uint(values[1])}};
  }
};

template <>
struct Sum<PushType::kBFloat16> {
  float values[4] = {};

  // The first of a pair is in the lower half of its word.
  __device__ void Add(const Line& line) {
    for (int i = 0; i < 2; ++i) {
      values[2 * i] += __uint_as_float(line.data[i] << 16);
      values[2 * i + 1] += __uint_as_float(line.data[i] & 0xffff0000u);
    }
  }
  __device__ Line Rounded() const {
    Line line;
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      line.data[i] = static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
                     static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
    }
    return line;
  }
};

template <PushType kType>
__global__ void __launch_bounds__(kThreads)
    PushSumKernel(const __grid_constant__ PushSumArgs args) {
  LetNextKernelIn();
  AwaitKernelBefore();
  volatile uint32_t* const state = args.state;
  const uint32_t num_sums = state[kNumSums];
  const uint32_t flag = num_sums + 1;
  const int64_t num_lines = args.num_bytes / kPushDataBytes;
  const int64_t message_bytes = args.max_bytes / kPushDataBytes * kPushLineBytes;
  const int64_t turn = num_sums % 2;
  Line* const data = static_cast<Line*>(args.data);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const auto place = [&](int owner, int sender, int64_t i) {
    return static_cast<std::byte*>(args.inboxes[owner]) +
           (turn * args.world + sender) * message_bytes + i * kPushLineBytes;
  };
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < num_lines; i += step) {
    const Line own = data[i];
    for (int rank = 0; rank < args.world; ++rank) {
      if (rank != args.rank) WriteLine(place(rank, args.rank, i), own, flag);
    }
  }
  for (int64_t i = first; i < num_lines; i += step) {
    Sum<kType> sum;
    for (int rank = 0; rank < args.world; ++rank) {
      Line line = data[i];
      if (rank != args.rank &&
          !ReadLine(place(args.rank, rank, i), flag, state + kPushGivesUp, line)) {
        break;
      }
      sum.Add(line);
    }
    data[i] = sum.Rounded();
  }
  // The last CTA to end counts the sum: all have read the count by then.
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(args.state + kNumEndedCtas, 1u) + 1 < gridDim.x) return;
  state[kNumEndedCtas] = 0;
  // 0 is the flag of lines that were never written.
  state[kNumSums] = num_sums + 1 == UINT32_MAX ? 1 : num_sums + 1;
}

}  // namespace

absl::Status LaunchPushSum(const PushSumArgs& args, CUstream_st* stream) {
  const int64_t num_lines = args.num_bytes / kPushDataBytes;
  if (num_lines == 0) return absl::OkStatus();
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>((num_lines + kThreads - 1) / kThreads, kMaxCtas)));
  const auto kernel = args.type == PushType::kFloat32 ? PushSumKernel<PushType::kFloat32>
                                                      : PushSumKernel<PushType::kBFloat16>;
  return CudaStatus(LaunchDependent(kernel, grid, dim3(kThreads), 0, stream, args),
                    "LaunchPushSum");
}

}  // namespace reprise
