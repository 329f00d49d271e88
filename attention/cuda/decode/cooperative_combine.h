// Synchronisation of the cooperative combine (cooperative_combine.cuh): an arrival counter that
// assigns slices of a Q tile's rows to the CTAs that have its KV splits. (In identifiers, "joint"
// means cooperative, and "share" means slice.)
//
// Split n has slice n if there are more than n slices, and otherwise no slice. The protocol of one
// Q tile:
// 1. Each CTA writes its partial and arrives at the counter. A CTA without a slice, or with more
//    units to process, does not wait: it hands its slice, if any, over to the last arriver.
// 2. A CTA that waits polls the counter until all splits have arrived. If its polls run out, it
//    hands its slice over, unless the last split arrives before it does. Polls run out if, for
//    example, the card runs fewer CTAs at a time than the plan assumed.
// 3. When all splits have arrived, each CTA that has not handed its slice over combines it. The
//    last arriver combines its slice and all slices that were handed over. All partials are visible
//    to them.
// 4. The last CTA to leave the counter resets it to 0.
//
// No CTA depends on another CTA to make progress. Each slice is combined exactly once, after all
// splits have arrived, for any order and timing of arrivals. The fields of the counter:
//
//   bits 0 to 7    number of splits that have arrived
//   bits 8 to 15   number of splits that have left: their CTAs do not access the counter again. The
//                  last CTA to leave sets it to 0
//   bits 16 to 31  slices that were handed over to the last arriver
//
// `Counter` has these operations on a uint32_t in memory that all CTAs share:
//
//   uint32_t AddAndSynchronize(uint32_t value)   adds, returns the previous value; acquire-release
//   uint32_t Add(uint32_t value)                 adds, returns the previous value; relaxed
//   uint32_t Look()                              returns the value; acquire

#ifndef REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_H_
#define REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_H_

#include <cstdint>

#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/host_device.h"

namespace reprise {

inline constexpr int kMaxShares = 16;

struct JointArrival {
  uint32_t shares;  // bit n: this CTA combines slice n
  // The counter before this CTA left it, for IsLastToGo(). The value may still be loading, and
  // nothing waits for it before the slices have been combined.
  uint32_t counter_before;
};

// Whether this CTA is the last to leave, and must reset the counter to 0.
REPRISE_HOST_DEVICE inline bool IsLastToGo(const JointArrival& arrival, int num_splits) {
  return (arrival.counter_before >> 8 & 0xff) + 1 == static_cast<uint32_t>(num_splits);
}

// Arrives, and leaves the counter. Returns when all splits have arrived, or earlier without slices.
// `own_share`: the bit of the CTA's slice, or 0. `looks`: maximum number of polls; 0: does not
// wait. Writes of the CTA before this call are visible to all CTAs that get slices. REQUIRES: 1 to
// kMaxJointSplits splits.
template <typename Counter>
REPRISE_HOST_DEVICE inline JointArrival ArriveJointly(Counter& counter, int num_splits,
                                                      uint32_t own_share, int looks) {
  constexpr uint32_t kArrival = 1;
  constexpr uint32_t kGoing = 1 << 8;
  constexpr int kSharesAt = 16;
  static_assert(kMaxJointSplits < 1 << 8, "a counter field holds the number of splits");
  const auto have_all_arrived = [num_splits](uint32_t value) {
    return (value & 0xff) == static_cast<uint32_t>(num_splits);
  };
  const bool waits = looks > 0 && own_share != 0;
  const uint32_t leaving = kGoing | own_share << kSharesAt;
  const uint32_t before = counter.AddAndSynchronize(waits ? kArrival : kArrival | leaving);
  const bool is_last = have_all_arrived(before + kArrival);
  const uint32_t shares_of_last = own_share | before >> kSharesAt;
  if (!waits) return {is_last ? shares_of_last : 0, before};
  if (is_last) return {shares_of_last, counter.Add(kGoing)};
  REPRISE_DO_NOT_UNROLL
  for (; looks > 0; --looks) {
    if (have_all_arrived(counter.Look())) return {own_share, counter.Add(kGoing)};
  }
  const uint32_t at_end = counter.AddAndSynchronize(leaving);
  return {have_all_arrived(at_end) ? own_share : 0, at_end};
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_COOPERATIVE_COMBINE_H_
