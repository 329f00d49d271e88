// What pushed sums need: distributed/push_sum.h says what they are, distributed/push_lines.cuh has the
// device's part. No LibTorch, no CUDA.

#ifndef REPRISE_DISTRIBUTED_PUSH_SUM_ARGS_H_
#define REPRISE_DISTRIBUTED_PUSH_SUM_ARGS_H_

#include <cstdint>

namespace reprise {

inline constexpr int kMaxPushRanks = 8;
inline constexpr int kPushDataBytes = 8;   // of a line
inline constexpr int kPushLineBytes = 16;  // with its flags

// Of an inbox for sums of up to max_bytes, a multiple of kPushDataBytes.
constexpr int64_t PushInboxBytes(int world, int64_t max_bytes) {
  return 2 * world * (max_bytes / kPushDataBytes) * kPushLineBytes;
}

// What a rank keeps from sum to sum, [kPushStateSize] in its memory, zero at first: the number of
// sums so far; the CTAs of this sum that have ended; and, if it is not 0, that kernels wait for no
// rank any more.
inline constexpr int kPushStateSize = 3;
inline constexpr int kPushNumSums = 0;
inline constexpr int kPushNumEndedCtas = 1;
inline constexpr int kPushGivesUp = 2;

enum class PushType : int8_t { kFloat32, kBFloat16 };

struct PushSumArgs {
  void* data = nullptr;   // the summands; kPushDataBytes divides its address and its size
  int64_t num_bytes = 0;  // at most max_bytes
  PushType type = PushType::kFloat32;
  int rank = 0;
  int world = 1;  // at most kMaxPushRanks
  // The inbox of each rank, all zero before the first sum; this rank's own, and the others' as mapped
  // here.
  void* inboxes[kMaxPushRanks] = {};
  int64_t max_bytes = 0;  // of which the inboxes are
  uint32_t* state = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PUSH_SUM_ARGS_H_
