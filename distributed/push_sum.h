// A sum over GPUs in which each rank writes its summands into the memory of the others, in one
// kernel that waits for nothing else: the quickest for small tensors. Private to the folder.
//
// A message is lines of 16 bytes: 4 bytes of data, a flag, 4 bytes of data, a flag. Each 8 bytes are
// written and read at once, so a line whose flags are the number of this sum is there, without a
// fence and without a signal that comes behind it. An inbox has two places for the message of each
// rank, which sums take in turn: a rank writes its next but one message when it has the next of its
// peer, who by then has read the one before.
//
// All ranks sum in the order of the ranks, in float32: results are bitwise equal.
//
//   PushSumArgs args = {.data = rows, .num_bytes = 8192, ...};
//   REPRISE_RETURN_IF_ERROR(LaunchPushSum(args, stream));
//
// Thread safety: const data except for what is written.

#ifndef DISTRIBUTED_PUSH_SUM_H_
#define DISTRIBUTED_PUSH_SUM_H_

#include <cstdint>

#include "absl/status/status.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

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
inline constexpr int kPushGivesUp = 2;

enum class PushType : int8_t { kFloat32, kBFloat16 };

struct PushSumArgs {
  void* data = nullptr;   // replaced by the sum; kPushDataBytes divides its address and its size
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

// Enqueues the kernel. All ranks enqueue sums of the same sizes in the same order, one at a time. May
// be captured. REQUIRES: as above. Errors: Internal if the launch fails. Only in builds with CUDA.
absl::Status LaunchPushSum(const PushSumArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // DISTRIBUTED_PUSH_SUM_H_
