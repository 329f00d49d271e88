// How the ranges of a map come to columns: which ways to cut them are tried, for the builder of a
// work map (attention/work_map_builder.h). Arithmetic for host and device.
//
//   whole    each range is one piece, in a column of its own
//   alike    each is cut into as many pieces of one size, each in a column of its own
//   filled   columns are filled one after the other, and cuts are at their borders
//
// The first two have fewer pieces to merge, and suit ranges that are few and of much the same
// length. A way is tried where the mean length speaks for it, and left where the ranges are not
// alike after all; the last one always does.

#ifndef ATTENTION_WORK_MAP_WAYS_H_
#define ATTENTION_WORK_MAP_WAYS_H_

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_cut.h"

namespace reprise {

// The query ranges of a map.
struct TileCounts {
  int with_keys = 0;
  int without_keys = 0;
};

template <typename Sum>
class CutWays {
 public:
  // Ranges of so many steps are not cut in two, if each can have a multiprocessor to itself. By
  // measurement on an H200, of which one CTA reads 12 % less than two: at 24 steps, a merge's time.
  static constexpr int kWholeSteps = 24;

  // `columns`: as they are filled. A column is not to have less than `least_steps`.
  REPRISE_HOST_DEVICE CutWays(Sum total_cost, const TileCounts& tiles, int least_steps,
                              int num_columns, const Columns<Sum>& columns)
      : num_tiles_(tiles.with_keys), least_steps_(least_steps) {
    if (num_tiles_ == 0 || num_tiles_ > num_columns) return;
    const Sum all_tiles = static_cast<Sum>(num_tiles_ + tiles.without_keys) * columns.tile_cost();
    num_steps_ = static_cast<int>((total_cost - all_tiles) / kStepCost);
    pieces_ = num_columns / num_tiles_;
    if (pieces_ == 2 && num_steps_ <= kWholeSteps * num_tiles_) {
      way_ = Way::kWhole;
    } else {
      TryAlike(columns);
    }
  }

  // The most steps of a piece that has a column of its own; 0: columns are filled.
  REPRISE_HOST_DEVICE int own_steps() const {
    if (way_ == Way::kFilled) return 0;
    const int own = CeilOf(num_steps_, num_tiles_ * (way_ == Way::kWhole ? 1 : pieces_));
    return own > least_steps_ ? own : least_steps_;
  }

  // Whether the ranges may stay as this way has cut them: `num_merges` of them in several pieces;
  // are_in_columns() says whether there is a column for each piece. Else the next way is to be
  // tried.
  template <typename AreInColumns>
  REPRISE_HOST_DEVICE bool IsDone(int num_merges, AreInColumns are_in_columns,
                                  const Columns<Sum>& columns) {
    if (way_ == Way::kFilled) return true;
    if (way_ == Way::kWhole) {
      if (num_merges == 0) return true;
      TryAlike(columns);
      return false;
    }
    if (are_in_columns()) return true;
    way_ = Way::kFilled;
    return false;
  }

 private:
  enum class Way { kWhole, kAlike, kFilled };

  REPRISE_HOST_DEVICE void TryAlike(const Columns<Sum>& columns) {
    way_ = Way::kAlike;
    if (own_steps() > columns.steps() + AtLeastOne(columns.steps() / 8)) way_ = Way::kFilled;
  }

  int num_tiles_;
  int least_steps_;
  int num_steps_ = 0;
  int pieces_ = 0;  // of a range
  Way way_ = Way::kFilled;
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_WAYS_H_
