#include "reprise/distributed/all_reduce_choice.h"

namespace reprise {

AllReduceWay ChooseAllReduce(const AllReduceCase& sum) {
  // LibTorch's kernels move 16 bytes at a time.
  if (!sum.has_kernel || sum.bytes % 16 != 0 || sum.bytes > sum.limits.max_symmetric_bytes) {
    return AllReduceWay::kNccl;
  }
  if (sum.aligned && sum.bytes <= sum.limits.max_push_bytes) return AllReduceWay::kPush;
  if (sum.in_buffer) return sum.aligned ? AllReduceWay::kTwoShot : AllReduceWay::kNccl;
  if (!sum.aligned) return AllReduceWay::kNccl;
  if (sum.bytes <= sum.limits.max_one_shot_bytes) return AllReduceWay::kOneShot;
  return sum.bytes >= sum.limits.min_copied_bytes ? AllReduceWay::kTwoShot : AllReduceWay::kNccl;
}

}  // namespace reprise
