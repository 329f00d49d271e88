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

  // Tokens 0..position of a sequence.
  void AddCausal(int token, int32_t row, int64_t position) {
    for (int64_t key = 0; key <= position; ++key) Add({token, position, row, key, key});
  }

  // The cache, and the path from the root to a node: each ancestor a position nearer to the cache.
  void AddPath(int token, int32_t row, int64_t prefix, const int32_t* parents, int node) {
    std::vector<int> path;  // from the node up
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

std::vector<SeenKey> ChainByDefinition(const ChainBatchArgs& args, std::optional<int> window_left) {
  Collector seen(window_left);
  const int64_t limit = LimitByDefinition(args.table, args.max_context_len, args.key_positions);
  int token = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    const int32_t slot = args.slots[r];
    if (slot < 0) continue;
    for (int i = 0; i < args.query_lens[r] + args.num_certain; ++i) {
      if (args.seq_len[slot] + i < limit) seen.AddCausal(token++, slot, args.seq_len[slot] + i);
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

std::vector<SeenKey> DraftChainByDefinition(const DraftChainArgs& args, int step,
                                            std::optional<int> window_left) {
  Collector seen(window_left);
  const int64_t limit = LimitByDefinition(args.rows.table, args.rows.max_context_len);
  for (int r = 0; r < args.rows.num_rows; ++r) {
    const int32_t slot = args.rows.slots[r];
    if (slot < 0 || args.rows.seq_len[slot] + step >= limit) continue;
    seen.AddCausal(r, slot, args.rows.seq_len[slot] + step);
  }
  return seen.Take();
}

std::vector<SeenKey> DraftLevelByDefinition(const DraftLevelArgs& args,
                                            const std::vector<std::vector<int32_t>>& trees,
                                            std::optional<int> window_left) {
  Collector seen(window_left);
  const int64_t limit = LimitByDefinition(args.rows.table, args.rows.max_context_len);
  for (int r = 0; r < args.rows.num_rows; ++r) {
    const int32_t slot = args.rows.slots[r];
    const auto num_nodes = static_cast<int>(trees[r].size());
    if (slot < 0 || args.rows.seq_len[slot] + num_nodes > limit) continue;
    for (int i = 0; i < args.width; ++i) {
      seen.AddPath(r * args.width + i, slot, args.rows.seq_len[slot], trees[r].data(),
                   num_nodes - args.width + i);
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
