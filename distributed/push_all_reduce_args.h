// Arguments of the one-shot push all-reduce (distributed/push_all_reduce.h).
// distributed/push_lines.cuh has the device code. No LibTorch, no CUDA.

#ifndef REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_ARGS_H_
#define REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_ARGS_H_

#include <cstdint>

namespace reprise {

inline constexpr int kMaxPushRanks = 8;
inline constexpr int kPushDataBytes = 8;   // data bytes per line
inline constexpr int kPushLineBytes = 16;  // bytes per line, with its flags

// Returns the size of an inbox for sums of up to max_bytes, which must be a multiple of
// kPushDataBytes.
constexpr int64_t PushInboxBytes(int world, int64_t max_bytes) {
  return 2 * world * (max_bytes / kPushDataBytes) * kPushLineBytes;
}

// State that a rank keeps between sums: [kPushStateSize] uint32 in device memory, initially zero.
// Entries: the number of sums so far; the number of CTAs that have finished the current sum; and a
// flag, nonzero if kernels must no longer wait for other ranks.
inline constexpr int kPushStateSize = 3;
inline constexpr int kPushNumSums = 0;
inline constexpr int kPushNumEndedCtas = 1;
inline constexpr int kPushGivesUp = 2;

enum class PushType : int8_t { kFloat32, kBFloat16 };

struct PushAllReduceArgs {
  void* data = nullptr;   // this rank's data; address and size are multiples of kPushDataBytes
  int64_t num_bytes = 0;  // at most max_bytes
  PushType type = PushType::kFloat32;
  int rank = 0;
  int world = 1;  // at most kMaxPushRanks
  // The inbox of each rank, mapped into this process. All zero before the first sum.
  void* inboxes[kMaxPushRanks] = {};
  int64_t max_bytes = 0;  // capacity of the inboxes in bytes of data
  uint32_t* state = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_ARGS_H_
