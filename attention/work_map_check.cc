#include "attention/work_map_check.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/attention_params.h"
#include "attention/visibility.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

template <typename... Parts>
absl::Status Broken(int invariant, const Parts&... what) {
  return absl::InternalError(
      absl::StrCat("invariant ", invariant, " of WorkMap is broken: ", what...));
}

// From the first to the last key that a query of [query_begin, query_end) sees.
KeyRange HullOf(const AttentionParams& layer, const BatchRow& row, int query_begin, int query_end) {
  KeyRange hull;
  for (int query = query_begin; query < query_end; ++query) {
    int first = 0;
    while (first < row.seq_len && !KeyPosition(layer, row, query, 0, first)) ++first;
    if (first >= row.seq_len) continue;
    int last = row.seq_len - 1;
    while (!KeyPosition(layer, row, query, 0, last)) --last;
    hull = hull.empty() ? KeyRange{first, last + 1}
                        : KeyRange{std::min(hull.begin, first), std::max(hull.end, last + 1)};
  }
  return hull;
}

class Checker {
 public:
  Checker(const WorkMap& map, const LayerWindow& window)
      : map_(map),
        num_items_(map.counts[0]),
        num_merges_(map.counts[1]),
        is_partial_used_(map.max_partials, false) {
    layer_.num_q_heads = layer_.num_kv_heads = 1;
    layer_.window_left = window.left;
    layer_.window_right = window.right;
  }

  template <typename Batch>
  absl::Status Check(const Batch& batch) {
    if (num_items_ < 0 || num_items_ > map_.max_items || num_merges_ < 0 ||
        num_merges_ > map_.max_merges) {
      return Broken(3, num_items_, " items of ", map_.max_items, ", ", num_merges_, " merges of ",
                    map_.max_merges);
    }
    for (int r = 0; r < batch.num_rows; ++r) {
      const BatchRow row = RowOf(batch, r);
      for (int query = 0; query < row.query_len;) {
        REPRISE_RETURN_IF_ERROR(CheckRange(r, row, query));
      }
    }
    if (next_item_ != num_items_) return Broken(2, next_item_, " of ", num_items_, " items used");
    if (next_merge_ != num_merges_) {
      return Broken(4, next_merge_, " of ", num_merges_, " merges used");
    }
    return CheckColumns();
  }

 private:
  absl::Status CheckColumns() const {
    if (map_.column_items[0] != 0 || map_.column_items[map_.num_columns] != num_items_) {
      return Broken(5, "columns hold items ", map_.column_items[0], " to ",
                    map_.column_items[map_.num_columns], " of ", num_items_);
    }
    for (int column = 0; column < map_.num_columns; ++column) {
      const int begin = map_.column_items[column];
      const int end = map_.column_items[column + 1];
      if (end < begin) return Broken(5, "column ", column, " ends at ", end);
      if (begin < end && !(map_.column_first[column] == map_.items[begin])) {
        return Broken(5, "column ", column, " does not begin with item ", begin);
      }
    }
    return absl::OkStatus();
  }

  // The items of the range that begins at `query`, which is advanced to its end.
  absl::Status CheckRange(int r, const BatchRow& row, int& query) {
    if (next_item_ >= num_items_) return Broken(2, "row ", r, " query ", query, " has no item");
    const int first_item = next_item_;
    const WorkItem& first = map_.items[first_item];
    if (first.row != r || first.query_begin != query || first.query_end <= query ||
        first.query_end > row.query_len || first.query_end - query > map_.tile_queries) {
      return Broken(2, "item ", first_item, " is row ", first.row, " queries ", first.query_begin,
                    " to ", first.query_end, ", next is row ", r, " query ", query, " of ",
                    row.query_len);
    }
    if (first.first_token != row.first_token + query) {
      return Broken(2, "item ", first_item, " begins at token ", first.first_token);
    }
    const KeyRange hull = HullOf(layer_, row, query, first.query_end);
    int key = hull.begin;
    do {
      const WorkItem& item = map_.items[next_item_];
      if (item.row != r || item.query_begin != query || item.query_end != first.query_end) {
        return Broken(1, "row ", r, " query ", query, " ends at key ", key, " of ", hull.end);
      }
      if (item.key_begin != key || item.key_end < key || item.key_end > hull.end) {
        return Broken(1, "item ", next_item_, " has keys ", item.key_begin, " to ", item.key_end,
                      ", next is ", key, " of ", hull.end);
      }
      key = item.key_end;
      ++next_item_;
    } while (key < hull.end && next_item_ < num_items_);
    if (key < hull.end) return Broken(1, "row ", r, " query ", query, " ends at key ", key);
    REPRISE_RETURN_IF_ERROR(CheckMerge(first_item, next_item_));
    query = first.query_end;
    return absl::OkStatus();
  }

  absl::Status CheckMerge(int begin, int end) {
    if (end - begin == 1) {
      if (map_.items[begin].partial < 0 && map_.items[begin].merge < 0) return absl::OkStatus();
      return Broken(4, "item ", begin, " is alone and has partial ", map_.items[begin].partial);
    }
    if (next_merge_ >= num_merges_) return Broken(4, "item ", begin, " has no merge");
    const WorkMerge& merge = map_.merges[next_merge_];
    const WorkItem& first = map_.items[begin];
    if (merge.row != first.row || merge.query_begin != first.query_begin ||
        merge.query_end != first.query_end || merge.num_partials != end - begin) {
      return Broken(4, "merge ", next_merge_, " of row ", merge.row, " has ", merge.num_partials,
                    " partials, its items are ", end - begin);
    }
    for (int i = begin; i < end; ++i) {
      const int partial = map_.items[i].partial;
      if (map_.items[i].merge != next_merge_ || partial != merge.first_partial + i - begin ||
          map_.items[i].first_partial != merge.first_partial ||
          map_.items[i].num_partials != merge.num_partials) {
        return Broken(4, "item ", i, " of merge ", next_merge_, " has partial ", partial);
      }
      if (partial < 0 || partial >= map_.max_partials || is_partial_used_[partial]) {
        return Broken(3, "item ", i, " has partial ", partial, " of ", map_.max_partials);
      }
      is_partial_used_[partial] = true;
    }
    ++next_merge_;
    return absl::OkStatus();
  }

  const WorkMap& map_;
  AttentionParams layer_;  // its window only
  const int num_items_;
  const int num_merges_;
  std::vector<bool> is_partial_used_;
  int next_item_ = 0;
  int next_merge_ = 0;
};

}  // namespace

absl::Status CheckWorkMap(const WorkMap& map, const PagedBatch& batch, const LayerWindow& window) {
  return Checker(map, window).Check(batch);
}

absl::Status CheckWorkMap(const WorkMap& map, const RaggedBatch& batch, const LayerWindow& window) {
  return Checker(map, window).Check(batch);
}

}  // namespace reprise
