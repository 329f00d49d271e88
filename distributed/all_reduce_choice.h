// Which way a sum over GPUs takes. No LibTorch.

#ifndef REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_
#define REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_

#include <cstdint>

namespace reprise {

enum class AllReduceWay {
  kNccl,     // NCCL's choice of algorithm
  kPush,     // each rank writes its tensor into the memory of all (distributed/push_sum.h)
  kOneShot,  // each rank reads all ranks' tensors from their memory, and sums them all
  kTwoShot,  // each rank sums its share of the elements, and all gather the shares
};

// Which sums go which way. Of the options of ConnectRanks(): distributed/process_group.h. The
// defaults are where the times of two H200s cross (docs/distributed.md).
struct AllReduceLimits {
  int64_t max_symmetric_bytes = int64_t{4} << 20;  // larger sums go through NCCL
  // Smaller sums are pushed, wherever the tensor is: of two ranks; of more a part of it, as each writes
  // to each other one. 0: none.
  int64_t max_push_bytes = int64_t{512} << 10;
  // Pushed sums of up to so many bytes may be done by the kernel that uses them (PushedSum() of
  // Collectives). 0: none.
  int64_t max_fused_bytes = int64_t{512} << 10;
  int64_t max_one_shot_bytes = int64_t{64} << 10;
  int64_t min_copied_bytes = int64_t{2} << 20;  // a copy into symmetric memory pays from here on
};

// What decides.
struct AllReduceCase {
  int64_t bytes = 0;
  bool has_kernel = false;  // the ways through symmetric memory have kernels for it: f32, bf16
  bool in_buffer = false;   // the tensor is in symmetric memory: NewBuffer()
  bool aligned = false;     // its address is a multiple of 16
  AllReduceLimits limits = {};
};

// A pure function: all ranks, which see the same case, choose the same. Beyond max_push_bytes: in
// place a one-shot sum would overwrite what the peers still read, so tensors in a buffer take two
// shots. Others are
// copied by the one-shot kernel itself up to max_one_shot_bytes, and by a copy before the two shots
// from min_copied_bytes on; NCCL sums those between.
AllReduceWay ChooseAllReduce(const AllReduceCase& sum);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_
