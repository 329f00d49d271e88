// Where the CTAs meet that merge a range jointly (joint_merge.cuh): a counter that says when all partials
// are there, and which CTA adds up which shares of them.
//
// Piece n has share n, or none if there are fewer shares than pieces. No CTA has to wait for others.
// One that has more to do, and one that has waited for long, as where a card runs fewer CTAs at a time
// than the plan was told, leaves its share to the last to arrive. So every share is taken exactly
// once, when all have arrived, whatever the order and the timing. The counter's fields:
//
//   bits 0 to 7    pieces that have arrived
//   bits 8 to 15   pieces that will not look at the counter again; the last of them sets it to 0
//   bits 16 to 31  shares that are left to the last to arrive
//
// `Counter` has the operations on a uint32_t in memory that all CTAs share:
//
//   uint32_t AddAndSynchronize(uint32_t value)   adds, returns the value before; acquires, releases
//   uint32_t Add(uint32_t value)                 adds, returns the value before
//   uint32_t Look()                              the value; acquires

#ifndef REPRISE_ATTENTION_CUDA_DECODE_JOINT_MERGE_H_
#define REPRISE_ATTENTION_CUDA_DECODE_JOINT_MERGE_H_

#include <cstdint>

#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/host_device.h"

namespace reprise {

inline constexpr int kMostShares = 16;

struct JointArrival {
  uint32_t shares;  // bit n: the CTA adds up share n
  // The counter before the CTA went, for IsLastToGo(): a value that may still be on its way, and that
  // nothing waits for before the shares are added up.
  uint32_t counter_before;
};

// Whether the CTA has to set the counter to 0.
REPRISE_HOST_DEVICE inline bool IsLastToGo(const JointArrival& arrival, int num_pieces) {
  return (arrival.counter_before >> 8 & 0xff) + 1 == static_cast<uint32_t>(num_pieces);
}

// Arrives, and returns when all have arrived, or without shares. `own_share`: a bit, or 0. `looks`: at
// the counter at most before it no longer waits; 0: it does not wait. What the CTA wrote before is
// visible to those that have shares. REQUIRES: 1 to kMostJointPieces pieces.
template <typename Counter>
REPRISE_HOST_DEVICE inline JointArrival ArriveJointly(Counter& counter, int num_pieces,
                                                      uint32_t own_share, int looks) {
  constexpr uint32_t kArrival = 1;
  constexpr uint32_t kGoing = 1 << 8;
  constexpr int kSharesAt = 16;
  static_assert(kMostJointPieces < 1 << 8, "a field of the counter holds the pieces");
  const auto have_all_arrived = [num_pieces](uint32_t value) {
    return (value & 0xff) == static_cast<uint32_t>(num_pieces);
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

#endif  // REPRISE_ATTENTION_CUDA_DECODE_JOINT_MERGE_H_
