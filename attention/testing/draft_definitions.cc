#include "reprise/attention/testing/draft_definitions.h"

#include <algorithm>

#include "reprise/attention/testing/draft_generator.h"

namespace reprise {
namespace {

class Collector {
 public:
  explicit Collector(std::optional<int> window_left) : window_left_(window_left) {}

  void Add(const SeenKey& key) {
    if (window_left_ && key.key_position < key.query_position - *window_left_) return;
    seen_.push_back(key);
  }

  // Adds tokens 0..position of a sequence.
  void AddCausal(int token, int32_t row, int64_t position) {
    for (int64_t key = 0; key <= position; ++key) Add({token, position, row, key, key});
  }

  // Adds the cached tokens and the path from the root to `node`. The position of each ancestor is
  // one less than its child's position.
  void AddPath(int token, int32_t row, int64_t prefix, const int32_t* parents, int node) {
    std::vector<int> path;  // from the node to the root
    for (int at = node; at >= 0; at = parents[at]) path.push_back(at);
    const int64_t position = prefix + static_cast<int64_t>(path.size()) - 1;
    for (int64_t key = 0; key < prefix; ++key) Add({token, position, row, key, key});
    for (size_t up = 0; up < path.size(); ++up) {
      Add({token, position, row, prefix + path[up], position - static_cast<int64_t>(up)});
    }
  }

  std::vector<SeenKey> Take() { return std::move(seen_); }

 private:
  std::optional<int> window_left_;
  std::vector<SeenKey> seen_;
};

}  // namespace

int64_t LimitByDefinition(const BlockTableView& table, int64_t max_context_len,
                          const KeyPositions& ranks) {
  const int64_t room = int64_t{table.max_blocks} * table.block_size;
  std::vector<int64_t> held(ranks.world);
  int64_t limit = 0;
  while (limit < max_context_len && ++held[limit / ranks.interleave % ranks.world] <= room) {
    ++limit;
  }
  return limit;
}

std::vector<SeenKey> ChainByDefinition(const BatchGatherArgs& args,
                                       std::optional<int> window_left) {
  Collector seen(window_left);
  const int64_t limit = LimitByDefinition(args.table, args.max_seq_len, args.key_positions);
  int token = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const int32_t slot = args.table_row[r];
    if (slot < 0) continue;
    for (int i = 0; i < args.query_lens[r] + args.num_verified; ++i) {
      const int32_t position = args.table_seq_lens[slot] + i;
      if (position < limit) seen.AddCausal(token++, slot, position);
    }
  }
  return seen.Take();
}

std::vector<SeenKey> TreeByDefinition(const TreeBatchArgs& args, std::optional<int> window_left) {
  Collector seen(window_left);
  const int64_t limit = LimitByDefinition(args.table, args.max_context_len);
  int token = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const int32_t slot = args.slots[r];
    if (slot < 0) continue;
    for (int node = 0; node < args.num_nodes[r] && args.seq_len[slot] + node < limit; ++node) {
      seen.AddPath(token++, slot, args.seq_len[slot], args.parents + r * args.parent_stride, node);
    }
  }
  return seen.Take();
}

std::vector<SeenKey> DraftPassByDefinition(const DraftRowsArgs& args,
                                           std::optional<int> window_left) {
  Collector seen(window_left);
  const bool is_tree = args.level.num_levels > 0;
  const int first_node = is_tree ? args.level.first : args.pass;
  const int end_node = is_tree ? args.level.end : args.pass + 1;
  const int64_t limit = LimitByDefinition(args.rows.table, INT32_MAX);
  int token = 0;
  for (int r = 0; r < args.rows.num_rows; ++r) {
    const int32_t slot = args.step.slot_of_row[r];
    const int64_t last = args.step.context_lens[r];
    if (args.step.num_proposed[r] <= 0) continue;
    if (args.pass == 0) {
      const int64_t begin = std::min<int64_t>(args.drafted_len[slot], last);
      for (int64_t p = begin; p <= last && p - begin <= args.max_drafts; ++p) {
        seen.AddCausal(token++, slot, p);
      }
      continue;
    }
    const int64_t first_chosen = is_tree ? int64_t{r} * (end_node - first_node) : r;
    if (end_node > args.step.num_proposed[r] || args.chosen[first_chosen] < 0) continue;
    if (last + end_node > limit) continue;
    for (int node = first_node; node < end_node; ++node) {
      if (is_tree) {
        seen.AddPath(token++, slot, last, args.step.parents.nodes + args.step.query_start_loc[r],
                     node);
      } else {
        seen.AddCausal(token++, slot, last + node);
      }
    }
  }
  return seen.Take();
}

VisiblePairs PairsOf(const std::vector<SeenKey>& seen, const BlockTableView& table) {
  VisiblePairs pairs;
  for (const SeenKey& key : seen) {
    pairs.push_back({key.token, key.query_position, key.key_position,
                     SlotByDefinition(table, key.row, key.place)});
  }
  std::ranges::sort(pairs);
  return pairs;
}

}  // namespace reprise
