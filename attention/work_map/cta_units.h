// The units that a CTA of an attention kernel processes, in its order. A unit is an item of the
// work map for one virtual head.
//
// In columns: CTA c has the items of column c / heads_per_column, for the heads
// c % heads_per_column, c % heads_per_column + heads_per_column, ...
//
// Dealt: units are in the order of map.deal_order, an item's heads side by side, so that CTAs that
// run at the same time read the same keys. The n-th unit of CTA c is unit n * num_ctas + c, or, in
// every other turn, n * num_ctas + (num_ctas - 1 - c): a CTA that got a longer unit gets a shorter
// one next. With 8 units of 8, 7, ..., 1 steps and 3 CTAs:
//
//   CTA 0   8   3   2       CTA 1   7   4   1       CTA 2   6   5
//
// If the map says so (TileMap::counts), CTAs of odd number have theirs from the last to the first,
// here 1 4 7: units that memory bounds are then under way beside those that products bound, where
// one kind is longer than the other.
//
// Thread safety: const. On the device, map is that of the kernel's parameters.

#ifndef REPRISE_ATTENTION_WORK_MAP_CTA_UNITS_H_
#define REPRISE_ATTENTION_WORK_MAP_CTA_UNITS_H_

#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/host_device.h"

namespace reprise {

class CtaUnits {
 public:
  // REQUIRES: 0 <= cta < map.num_ctas; the map has been filled.
  REPRISE_HOST_DEVICE CtaUnits(const TileMap& map, int cta) : map_(map), cta_(cta) {
    num_dealt_ = map.may_be_dealt ? map.counts[2] * map.num_virtual_heads : 0;
    if (num_dealt_ > 0) {
      is_backwards_ = cta % 2 != 0 && map.counts[3] != 0;
      count_ = num_dealt_ / map.num_ctas;
      if (UnitOfTurn(count_) < num_dealt_) ++count_;
      return;
    }
    const int column = cta / map.heads_per_column;
    if (column >= map.num_columns) return;
    first_head_ = cta - column * map.heads_per_column;
    num_heads_ =
        (map.num_virtual_heads - first_head_ + map.heads_per_column - 1) / map.heads_per_column;
    first_item_ = map.column_items[column];
    count_ = (map.column_items[column + 1] - first_item_) * num_heads_;
  }

  REPRISE_HOST_DEVICE int count() const { return count_; }

  // Of the CTA's n-th unit, n < count().
  REPRISE_HOST_DEVICE int ItemOf(int n) const {
    if (num_dealt_ > 0) return map_.deal_order[RankOf(n)];
    return first_item_ + n / num_heads_;
  }
  REPRISE_HOST_DEVICE int HeadOf(int n) const {
    if (num_dealt_ > 0) return DealtUnit(n) % map_.num_virtual_heads;
    return first_head_ + n % num_heads_ * map_.heads_per_column;
  }

  // Where the item of the first unit is, if there is one: mostly in map.column_first, which saves a
  // dependent read.
  REPRISE_HOST_DEVICE const WorkItem* FirstItem() const {
    if (is_backwards_ && count_ > 0) return map_.items + ItemOf(0);
    return map_.column_first + cta_ / map_.heads_per_column;
  }

  // Dealt: the place of the n-th unit's item in map.deal_order.
  REPRISE_HOST_DEVICE int RankOf(int n) const { return DealtUnit(n) / map_.num_virtual_heads; }

 private:
  REPRISE_HOST_DEVICE int DealtUnit(int n) const {
    return UnitOfTurn(is_backwards_ ? count_ - 1 - n : n);
  }
  REPRISE_HOST_DEVICE int UnitOfTurn(int n) const {
    return n * map_.num_ctas + (n % 2 == 0 ? cta_ : map_.num_ctas - 1 - cta_);
  }

  const TileMap& map_;
  const int cta_;
  int num_dealt_;              // units of all CTAs; 0: they are in columns
  bool is_backwards_ = false;  // dealt: the last turn is first
  int first_head_ = 0, num_heads_ = 1, first_item_ = 0;  // in columns
  int count_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_CTA_UNITS_H_
