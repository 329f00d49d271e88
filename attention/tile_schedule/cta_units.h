// The units that a CTA of an attention kernel processes, in order. A unit is a pair (item of the
// tile schedule, head tile).
//
// In queues: CTA c has the items of queue c / heads_per_queue, for the heads c % heads_per_queue,
// c % heads_per_queue + heads_per_queue, ...
//
// Round-robin: units are in the order of schedule.deal_order, with the heads of an item adjacent,
// so that CTAs that run concurrently read the same keys. The n-th unit of CTA c is n * num_ctas + c
// in even rounds, and n * num_ctas + (num_ctas - 1 - c) in odd rounds: a CTA that got a longer unit
// gets a shorter one next. With 8 units of 8, 7, ..., 1 KV tiles and 3 CTAs:
//
//   CTA 0   8   3   2       CTA 1   7   4   1       CTA 2   6   5
//
// If KernelSchedule::counts requests it, odd CTAs process their list in reverse, here 1 4 7.
// Memory-bound and compute-bound units then overlap even if one kind is longer.
//
// Thread safety: const. On the device, `schedule` must be the kernel's parameter.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_CTA_UNITS_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_CTA_UNITS_H_

#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/host_device.h"

namespace reprise {

class CtaUnits {
 public:
  // REQUIRES: 0 <= cta < schedule.num_ctas; the schedule has been built.
  REPRISE_HOST_DEVICE CtaUnits(const KernelSchedule& schedule, int cta)
      : schedule_(schedule), cta_(cta) {
    num_dealt_ = schedule.may_be_dealt ? schedule.counts[2] * schedule.num_head_tiles : 0;
    if (num_dealt_ > 0) {
      is_backwards_ = cta % 2 != 0 && schedule.counts[3] != 0;
      count_ = num_dealt_ / schedule.num_ctas;
      if (UnitOfTurn(count_) < num_dealt_) ++count_;
      return;
    }
    const int queue = cta / schedule.heads_per_queue;
    if (queue >= schedule.num_queues) return;
    first_head_ = cta - queue * schedule.heads_per_queue;
    num_heads_ = (schedule.num_head_tiles - first_head_ + schedule.heads_per_queue - 1) /
                 schedule.heads_per_queue;
    first_item_ = schedule.queue_items[queue];
    count_ = (schedule.queue_items[queue + 1] - first_item_) * num_heads_;
  }

  REPRISE_HOST_DEVICE int count() const { return count_; }

  // The item and the head of the CTA's n-th unit. REQUIRES: 0 <= n < count().
  REPRISE_HOST_DEVICE int ItemOf(int n) const {
    if (num_dealt_ > 0) return schedule_.deal_order[RankOf(n)];
    return first_item_ + n / num_heads_;
  }
  REPRISE_HOST_DEVICE int HeadOf(int n) const {
    if (num_dealt_ > 0) return DealtUnit(n) % schedule_.num_head_tiles;
    return first_head_ + n % num_heads_ * schedule_.heads_per_queue;
  }

  // The address of the first unit's item, if the CTA has units. It is usually in
  // schedule.queue_first, which saves a dependent read.
  REPRISE_HOST_DEVICE const WorkItem* FirstItem() const {
    if (is_backwards_ && count_ > 0) return schedule_.items + ItemOf(0);
    return schedule_.queue_first + cta_ / schedule_.heads_per_queue;
  }

  // Round-robin only: the index of the n-th unit's item in schedule.deal_order.
  REPRISE_HOST_DEVICE int RankOf(int n) const { return DealtUnit(n) / schedule_.num_head_tiles; }

 private:
  REPRISE_HOST_DEVICE int DealtUnit(int n) const {
    return UnitOfTurn(is_backwards_ ? count_ - 1 - n : n);
  }
  REPRISE_HOST_DEVICE int UnitOfTurn(int n) const {
    return n * schedule_.num_ctas + (n % 2 == 0 ? cta_ : schedule_.num_ctas - 1 - cta_);
  }

  const KernelSchedule& schedule_;
  const int cta_;
  int num_dealt_;              // round-robin units of all CTAs; 0: units are in queues
  bool is_backwards_ = false;  // round-robin only: the last round comes first
  int first_head_ = 0, num_heads_ = 1, first_item_ = 0;  // in queues
  int count_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_CTA_UNITS_H_
