#include "reprise/attention/tile_schedule/tile_schedule_check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
#include "reprise/attention/visibility.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

template <typename... Parts>
absl::Status Broken(int invariant, const Parts&... what) {
  return absl::InternalError(
      absl::StrCat("invariant ", invariant, " of TileSchedule is broken: ", what...));
}

// The range from the first to the last key that any query of [query_begin, query_end) sees.
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

// The number of KV tiles that the item touches.
int StepsOf(const WorkItem& item) {
  if (item.key_begin >= item.key_end) return 0;
  return (item.key_end + kWorkStepKeys - 1) / kWorkStepKeys - item.key_begin / kWorkStepKeys;
}

class Checker {
 public:
  Checker(const WorkPart& part, const LayerWindow& window)
      : schedule_(part.schedule),
        form_(part.form),
        lens_(part.lens),
        num_items_(part.schedule.counts[0]),
        num_merges_(part.schedule.counts[1]),
        partial_user_(part.schedule.max_partials, kNoUser) {
    layer_.num_q_heads = layer_.num_kv_heads = 1;
    layer_.window_left = window.left;
    layer_.window_right = window.right;
  }

  template <typename Batch>
  absl::Status Check(const Batch& batch) {
    num_rows_ = batch.num_rows;
    if (num_items_ < 0 || num_items_ > schedule_.max_items || num_merges_ < 0 ||
        num_merges_ > schedule_.max_merges) {
      return Broken(3, num_items_, " items of ", schedule_.max_items, ", ", num_merges_,
                    " merges of ", schedule_.max_merges);
    }
    while (next_item_ < num_items_ && schedule_.items[next_item_].row == kSharedRow) {
      REPRISE_RETURN_IF_ERROR(CheckSharedRange(batch.query_start_loc[batch.num_rows]));
    }
    for (int r = 0; r < batch.num_rows; ++r) {
      BatchRow row = RowOf(batch, r);
      if (batch.custom_mask) {  // the builder ignores the mask: RowsOf()
        row.custom_mask = nullptr;
        row.causal = false;
      }
      if (row.query_len < lens_.least || row.query_len > lens_.most) continue;
      REPRISE_RETURN_IF_ERROR(CheckSeesShared(r, row));
      for (int query = 0; query < row.query_len;) {
        REPRISE_RETURN_IF_ERROR(CheckRange(r, row, query));
      }
    }
    if (next_item_ != num_items_) return Broken(2, next_item_, " of ", num_items_, " items used");
    if (next_merge_ != num_merges_) {
      return Broken(4, next_merge_, " of ", num_merges_, " merges used");
    }
    REPRISE_RETURN_IF_ERROR(CheckChildren());
    return CheckQueues();
  }

 private:
  static constexpr int kNoUser = -1;
  static constexpr int kOneRange = -2;

  absl::Status CheckQueues() const {
    if (schedule_.queue_items[0] != 0 ||
        schedule_.queue_items[schedule_.num_queues] != num_items_) {
      return Broken(5, "queues hold items ", schedule_.queue_items[0], " to ",
                    schedule_.queue_items[schedule_.num_queues], " of ", num_items_);
    }
    for (int queue = 0; queue < schedule_.num_queues; ++queue) {
      const int begin = schedule_.queue_items[queue];
      const int end = schedule_.queue_items[queue + 1];
      if (end < begin) return Broken(5, "queue ", queue, " ends at ", end);
      const bool begins_so =
          schedule_.counts[2] > 0 || schedule_.queue_first[queue] == schedule_.items[begin];
      if (begin < end && !begins_so) {
        return Broken(5, "queue ", queue, " does not begin with item ", begin);
      }
    }
    if (schedule_.counts[2] > 0) return CheckDeal();
    if (form_.is_wide && schedule_.queue_items[schedule_.wide_queues] != num_items_) {
      return Broken(7, "the ", schedule_.wide_queues, " queues of wide CTAs hold ",
                    schedule_.queue_items[schedule_.wide_queues], " of ", num_items_, " items");
    }
    return schedule_.counts[4] == 0 ? absl::OkStatus() : CheckClusters();
  }

  // Each queue has at most one item, which is split s of its Q tile in the s-th queue of a cluster.
  absl::Status CheckClusters() const {
    const int cluster = form_.cluster;
    if (cluster == 1) return Broken(7, "Q tiles have clusters, but the kernel has none");
    for (int queue = 0; queue < schedule_.num_queues; ++queue) {
      const int i = schedule_.queue_items[queue];
      const int num_items = schedule_.queue_items[queue + 1] - i;
      if (num_items == 0) continue;
      const WorkItem& item = schedule_.items[i];
      const int split = item.partial < 0 ? 0
                                         : (item.partial - item.first_partial) /
                                               (item.query_end - item.query_begin);
      if (num_items > 1 || queue >= QueuesInUse(schedule_, cluster) || queue % cluster != split) {
        return Broken(7, "queue ", queue, " of clusters of ", cluster, " has ", num_items,
                      " items, the first is split ", split);
      }
    }
    return absl::OkStatus();
  }

  // Round-robin items are unsplit Q tiles, in the order of DealBucket() (longest first), then of
  // item index. queue_first must hold the first item of every CTA that is not reversed.
  absl::Status CheckDeal() const {
    if (!schedule_.may_be_dealt || schedule_.counts[2] != num_items_ || num_merges_ != 0) {
      return Broken(5, schedule_.counts[2], " of ", num_items_, " items are round-robin, with ",
                    num_merges_, " merges");
    }
    std::vector<bool> is_dealt(num_items_, false);
    int longest = 0;
    for (int i = 0; i < num_items_; ++i) longest = std::max(longest, StepsOf(schedule_.items[i]));
    int longest_of[2] = {0, 0};  // other rows, short rows
    for (int i = 0; i < num_items_; ++i) {
      const WorkItem& item = schedule_.items[i];
      int& most = longest_of[IsOfShortRow(item, item.query_len, schedule_)];
      most = std::max(most, StepsOf(item));
    }
    if ((schedule_.counts[3] != 0) !=
        AreDealtBothWays(longest_of[1], longest_of[0], schedule_.costs)) {
      return Broken(5, "reversed order in odd CTAs: ", schedule_.counts[3],
                    ", short rows have up to ", longest_of[1], " steps, the others ",
                    longest_of[0]);
    }
    std::pair<int, int> before = {-1, -1};  // bucket, item
    for (int rank = 0; rank < num_items_; ++rank) {
      const int i = schedule_.deal_order[rank];
      if (i < 0 || i >= num_items_ || is_dealt[i]) {
        return Broken(5, "item ", i, " is in deal_order at ", rank);
      }
      is_dealt[i] = true;
      const std::pair<int, int> at = {DealBucket(StepsOf(schedule_.items[i]), longest), i};
      if (at < before)
        return Broken(5, "item ", i, " must precede the item before it in deal_order");
      before = at;
      const bool is_first = rank <= (schedule_.num_ctas - 1) / schedule_.heads_per_queue;
      if (is_first && !(schedule_.queue_first[rank] == schedule_.items[i])) {
        return Broken(5, "a CTA must begin with item ", i, ", which is in deal_order at ", rank);
      }
    }
    return absl::OkStatus();
  }

  // Checks the shared items over the next tile_queries tokens.
  absl::Status CheckSharedRange(int num_tokens) {
    const int first_item = next_item_;
    const WorkItem& first = schedule_.items[first_item];
    const int token = static_cast<int>(shared_.size()) * schedule_.tile_queries;
    const int queries = std::min(schedule_.tile_queries, num_tokens - token);
    if (first.first_token != token || first.query_begin != 0 || first.query_end != queries) {
      return Broken(2, "shared item ", first_item, " begins at token ", first.first_token, " of ",
                    first.query_end, " queries, next is ", token, " of ", queries);
    }
    int key = 0;
    for (; next_item_ < num_items_ && schedule_.items[next_item_].row == kSharedRow &&
           schedule_.items[next_item_].first_token == token;
         ++next_item_) {
      const WorkItem& item = schedule_.items[next_item_];
      if (item.key_begin != key || item.key_end <= key || item.merge != -1) {
        return Broken(1, "shared item ", next_item_, " has keys ", item.key_begin, " to ",
                      item.key_end, ", next is ", key);
      }
      if (item.is_joint != 0)
        return Broken(4, "shared item ", next_item_, " is combined cooperatively");
      REPRISE_RETURN_IF_ERROR(CheckPartials(next_item_, first_item, schedule_.tile_queries));
      key = item.key_end;
    }
    if (first.num_partials != next_item_ - first_item) {
      return Broken(4, "shared item ", first_item, " has ", first.num_partials, " partials of ",
                    next_item_ - first_item);
    }
    if (shared_.empty()) shared_keys_ = key;
    if (key != shared_keys_) return Broken(1, "shared items end at ", key, " and ", shared_keys_);
    shared_.push_back(first_item);
    return absl::OkStatus();
  }

  // Every live query sees all shared keys, and no shared key belongs to the row's new tokens or
  // tail.
  absl::Status CheckSeesShared(int r, const BatchRow& row) const {
    if (shared_keys_ == 0 || row.seq_len == 0) return absl::OkStatus();
    for (int query = 0; query < row.query_len; ++query) {
      for (int key = 0; key < shared_keys_; ++key) {
        if (key < row.seq_len - std::max(row.query_len, row.tail_len) &&
            KeyPosition(layer_, row, query, 0, key)) {
          continue;
        }
        return Broken(1, "row ", r, " query ", query, " does not see shared key ", key);
      }
    }
    return absl::OkStatus();
  }

  // The children of a shared item are exactly the items that reference it.
  absl::Status CheckChildren() const {
    int next_child = 0;
    for (size_t i = 0; i < shared_.size(); ++i) {
      const WorkItem& first = schedule_.items[shared_[i]];
      for (int n = 0; n < first.num_partials; ++n) {
        const WorkItem& item = schedule_.items[shared_[i] + n];
        if (item.first_child != first.first_child || item.end_child != first.end_child) {
          return Broken(4, "shared item ", shared_[i] + n,
                        " must have the same children as the first split of its Q tile");
        }
      }
      if (i > 0 && first.first_child != next_child) {
        return Broken(4, "shared item ", shared_[i], " begins at child ", first.first_child);
      }
      next_child = first.end_child;
      for (int child = first.first_child; child < first.end_child; ++child) {
        const int token = schedule_.items[child].first_token;
        if (token / schedule_.tile_queries != static_cast<int>(i)) {
          return Broken(4, "item ", child, " of token ", token, " is a child of shared item ",
                        shared_[i]);
        }
      }
    }
    if (!shared_.empty() && next_child != num_items_) {
      return Broken(4, "children end at ", next_child, " of ", num_items_);
    }
    return absl::OkStatus();
  }

  // Checks the items of the Q tile that begins at `query`. Advances `query` to the Q tile's end.
  absl::Status CheckRange(int r, const BatchRow& row, int& query) {
    if (next_item_ >= num_items_) return Broken(2, "row ", r, " query ", query, " has no item");
    const int first_item = next_item_;
    const WorkItem& first = schedule_.items[first_item];
    if (first.row != r || first.query_begin != query || first.query_end <= query ||
        first.query_end > row.query_len || first.query_end - query > schedule_.tile_queries) {
      return Broken(2, "item ", first_item, " is row ", first.row, " queries ", first.query_begin,
                    " to ", first.query_end, ", next is row ", r, " query ", query, " of ",
                    row.query_len);
    }
    if (first.first_token != row.first_token + query) {
      return Broken(2, "item ", first_item, " begins at token ", first.first_token);
    }
    KeyRange hull = HullOf(layer_, row, query, first.query_end);
    hull.begin = std::max(hull.begin, shared_keys_);
    hull.end = std::max(hull.begin, hull.end);
    int key = hull.begin;
    do {
      const WorkItem& item = schedule_.items[next_item_];
      if (item.row != r || item.query_begin != query || item.query_end != first.query_end) {
        return Broken(1, "row ", r, " query ", query, " ends at key ", key, " of ", hull.end);
      }
      if (item.key_begin != key || item.key_end < key || item.key_end > hull.end) {
        return Broken(1, "item ", next_item_, " has keys ", item.key_begin, " to ", item.key_end,
                      ", next is ", key, " of ", hull.end);
      }
      const bool is_joint = item.partial >= 0 && shared_keys_ == 0 &&
                            CombinesCooperatively(schedule_, item.query_end - item.query_begin,
                                                  item.num_partials, hull.end - hull.begin);
      if ((item.is_joint != 0) != is_joint) {
        return Broken(4, "item ", next_item_, is_joint ? " is not" : " is",
                      " combined cooperatively");
      }
      REPRISE_RETURN_IF_ERROR(CheckShared(item));
      key = item.key_end;
      ++next_item_;
    } while (key < hull.end && next_item_ < num_items_);
    if (key < hull.end) return Broken(1, "row ", r, " query ", query, " ends at key ", key);
    REPRISE_RETURN_IF_ERROR(CheckMerge(first_item, next_item_));
    query = first.query_end;
    return absl::OkStatus();
  }

  // The item references the shared items over its queries.
  absl::Status CheckShared(const WorkItem& item) const {
    if (shared_keys_ == 0) {
      if (item.num_shared_partials == 0) return absl::OkStatus();
      return Broken(4, "row ", item.row, " has shared partials, but no prefix is shared");
    }
    const int i = item.first_token / schedule_.tile_queries;
    const WorkItem& shared = schedule_.items[shared_[i]];
    const int query = item.first_token - i * schedule_.tile_queries;
    if (query + item.query_end - item.query_begin <= schedule_.tile_queries &&
        item.first_shared_partial == shared.partial + query &&
        item.num_shared_partials == shared.num_partials) {
      return absl::OkStatus();
    }
    return Broken(4, "row ", item.row, " query ", item.query_begin, " names shared partial ",
                  item.first_shared_partial);
  }

  // Item i of the Q tile that begins with item `begin` has the expected partials, and no other Q
  // tile uses them, except within the same queue. `user`: as in partial_user_.
  absl::Status CheckPartials(int i, int begin, int stride, int user = kOneRange) {
    const WorkItem& item = schedule_.items[i];
    const WorkItem& first = schedule_.items[begin];
    if (item.partial != first.first_partial + (i - begin) * stride ||
        item.first_partial != first.first_partial || item.num_partials != first.num_partials) {
      return Broken(4, "item ", i, " has partial ", item.partial);
    }
    for (int n = 0; n < item.query_end - item.query_begin; ++n) {
      const int partial = item.partial + n;
      const bool is_free = partial >= 0 && partial < schedule_.max_partials &&
                           (partial_user_[partial] == kNoUser ||
                            (user != kOneRange && partial_user_[partial] == user));
      if (!is_free) {
        return Broken(3, "item ", i, " has partial ", partial, " of ", schedule_.max_partials);
      }
      partial_user_[partial] = user;
    }
    return absl::OkStatus();
  }

  int QueueOf(int item) const {
    const int32_t* const begin = schedule_.queue_items;
    return static_cast<int>(std::upper_bound(begin, begin + schedule_.num_queues, item) - begin) -
           1;
  }

  // The user of the partials of items [begin, end): their queue if partials are by queue and the
  // items are in one queue, otherwise kOneRange.
  int UserOf(int begin, int end) const {
    const int queue = QueueOf(begin);
    return schedule_.queue_partials > 0 && queue == QueueOf(end - 1) ? queue : kOneRange;
  }

  absl::Status CheckMerge(int begin, int end) {
    if (end - begin == 1 && shared_keys_ == 0) {
      if (schedule_.items[begin].partial < 0 && schedule_.items[begin].merge < 0)
        return absl::OkStatus();
      return Broken(4, "item ", begin, " is not split, but has partial ",
                    schedule_.items[begin].partial);
    }
    if (next_merge_ >= num_merges_) return Broken(4, "item ", begin, " has no merge");
    const TileCombine& merge = schedule_.merges[next_merge_];
    const WorkItem& first = schedule_.items[begin];
    if (merge.row != first.row || merge.query_begin != first.query_begin ||
        merge.query_end != first.query_end || merge.num_partials != end - begin ||
        merge.first_partial != first.first_partial || merge.num_partials != first.num_partials) {
      return Broken(4, "merge ", next_merge_, " of row ", merge.row, " has ", merge.num_partials,
                    " partials, expected ", end - begin);
    }
    const int user = UserOf(begin, end);
    for (int i = begin; i < end; ++i) {
      if (schedule_.items[i].merge != next_merge_)
        return Broken(4, "item ", i, " must have the same merge as its Q tile");
      REPRISE_RETURN_IF_ERROR(CheckPartials(i, begin, first.query_end - first.query_begin, user));
    }
    ++next_merge_;
    return absl::OkStatus();
  }

  const KernelSchedule& schedule_;
  const LaunchForm form_;
  const QueryLens lens_;
  AttentionParams layer_;  // one head, and the window
  const int num_items_;
  const int num_merges_;
  int num_rows_ = 0;
  // By partial: kNoUser; kOneRange; or the queue whose Q tiles share the partial.
  std::vector<int> partial_user_;
  int next_item_ = 0;
  int next_merge_ = 0;
  std::vector<int> shared_;  // the first item of each shared Q tile
  int shared_keys_ = 0;
};

template <typename Batch>
absl::Status Check(const TileSchedule& schedule, const Batch& batch, const LayerWindow& window) {
  for (const WorkPart& part : PartsOf(WorkOf(batch, window, schedule))) {
    REPRISE_RETURN_IF_ERROR(Checker(part, window).Check(batch));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTileSchedule(const TileSchedule& schedule, const PagedBatch& batch,
                               const LayerWindow& window) {
  return Check(schedule, batch, window);
}

absl::Status CheckTileSchedule(const TileSchedule& schedule, const RaggedBatch& batch,
                               const LayerWindow& window) {
  return Check(schedule, batch, window);
}

}  // namespace reprise
