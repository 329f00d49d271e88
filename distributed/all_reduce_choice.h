// The algorithm of an all-reduce over GPUs. Does not depend on LibTorch.

#ifndef REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_
#define REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_

#include <cstdint>

namespace reprise {

enum class AllReduceWay {
  kNccl,     // NCCL chooses the algorithm
  kPush,     // each rank writes its tensor to every other rank (distributed/push_all_reduce.h)
  kOneShot,  // each rank reads the tensors of all ranks and sums them
  kTwoShot,  // each rank sums one part of the elements, then all gather the parts
};

// Size limits of the algorithms, an option of ConnectRanks() (distributed/process_group.h). The
// defaults are the crossover points measured on two H200s (docs/distributed.md).
struct AllReduceLimits {
  int64_t max_symmetric_bytes = int64_t{4} << 20;  // larger tensors use NCCL
  // Aligned tensors up to this size use kPush, in any memory. This is the limit for two ranks. With
  // more ranks, it is divided by world - 1, because each rank writes to every other rank. 0, or
  // more than 8 ranks: kPush is not used.
  int64_t max_push_bytes = int64_t{512} << 10;
  // Maximum size for which PushAllReduce() of Collectives lets the caller's kernel perform the push
  // all-reduce itself. 0: never.
  int64_t max_fused_bytes = int64_t{512} << 10;
  int64_t max_one_shot_bytes = int64_t{64} << 10;
  // Tensors of at least this size are worth a copy into symmetric memory.
  int64_t min_copied_bytes = int64_t{2} << 20;
};

// The properties of an all-reduce that determine its algorithm.
struct AllReduceCase {
  int64_t bytes = 0;
  bool has_kernel = false;  // the dtype is supported outside NCCL: f32, bf16
  bool in_buffer = false;   // the tensor is in symmetric memory (NewBuffer())
  bool aligned = false;     // the tensor's address is a multiple of 16
  AllReduceLimits limits = {};
};

// Chooses the algorithm. A pure function: all ranks pass the same case, so they choose the same
// algorithm. A tensor uses kNccl if it has no kernel, is not aligned, is larger than
// max_symmetric_bytes, or if its size is not a multiple of 16 bytes. Any other tensor uses kPush up
// to max_push_bytes. Above that size:
//   - A tensor in a buffer uses kTwoShot. An in-place one-shot sum would overwrite data that the
//     peers are still reading.
//   - Any other tensor uses kOneShot up to max_one_shot_bytes; the kernel copies it.
//   - If it has at least min_copied_bytes, it is copied to symmetric memory and uses kTwoShot.
//   - Between these two limits, it uses kNccl.
AllReduceWay ChooseAllReduce(const AllReduceCase& sum);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_ALL_REDUCE_CHOICE_H_
