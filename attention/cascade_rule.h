// Whether to read a shared prefix once for all rows (cascade attention), or flat, row by row. D3,
// D13.
//
//   const CascadeDecision decision = ChooseCascade({.num_rows = 64, .num_tokens = 64,
//       .common_prefix_len = 4096, .num_suffix_keys = 64 * 300, .num_q_heads = 32, ...});
//   if (decision.use()) batch.common_prefix_len = ...;
//   LOG(INFO) << decision;   // "flat: not quicker: 21.0 us flat, 24.5 us with the prefix apart"
//
// A rule from a cost model of one layer's attention. With b bytes a key, P keys of prefix, S keys
// of all suffixes, R rows, N queries (tokens):
//
//   flat     = call + (P + S) b / read + (R - 1) P b / reread
//   cascade  = call + P b / read + S b / suffix_read + (T - 1) P b / tile_reread + prefix
//              + products + merge + merge_token N
//
// flat: every row reads the prefix, the first time from memory, then from the L2, in which rows
// that run side by side find it. cascade: the prefix is read by T tiles of queries (1, if tiles are
// not counted), in a pass of all queries over it (`products`: 2 N P num_q_heads (head_dim_qk +
// head_dim_v) operations), each row reads its suffix, and the two are merged
// (attention/merge_states.h, or within the launch). The constants are those of kernels on a card,
// from tests/benchmarks/device/shared_prefix; docs/performance.md has the measurements.
//
// Pure functions of host values.

#ifndef ATTENTION_CASCADE_RULE_H_
#define ATTENTION_CASCADE_RULE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace reprise {

// What is to be attended to, of one layer.
struct CascadeShape {
  int num_rows = 0;    // live ones
  int num_tokens = 0;  // queries of all of them
  int64_t common_prefix_len = 0;
  int64_t num_suffix_keys = 0;  // sum over rows of seq_len - common_prefix_len
  int64_t max_seq_len = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  bool v_in_k = false;        // V is the first columns of K: it is not read once more
  int bytes_per_element = 2;  // of the cache
  int tile_queries = 0;       // that read the prefix together (TileMap::tile_queries); 0: all
  std::optional<int> window_left = {};
};

// The kernels on a card.
struct CascadeCosts {
  double read_tb_per_s = 0;    // from memory
  double reread_tb_per_s = 0;  // of what another row has just read
  // With the prefix apart: of what another tile has just read, and of the rows' own keys; 0: as
  // flat.
  double tile_reread_tb_per_s = 0;
  double suffix_tb_per_s = 0;
  double products_tflops = 0;  // of the pass over the prefix; 0: they come beside reading
  double call_us = 0;          // of a call, whatever it reads
  double prefix_us = 0;        // of the pass over the prefix, whatever it reads
  double merge_us = 0;         // of the merge, and a query more
  double merge_us_per_token = 0;
  double least_gain = 0.05;  // of the flat time, below which flat stays
};

// One H200, with the general kernels (tier 1): the prefix, the suffixes and the merge as three
// launches.
CascadeCosts H200CascadeCosts();

// One H200, all of it in one launch: decodes through a work map planned for a shared prefix in
// small tiles (SharedPrefix::kTaken, SharedTiles::kSmall of attention/work_map_plan.h).
CascadeCosts H200SharedMapCosts();

enum class CascadeReason {
  kUse,
  kFewRows,      // fewer than two rows: nothing is shared
  kNoPrefix,     // no whole block in common
  kWindow,       // the window hides some of the prefix from some row
  kNotQuicker,   // the model says so
  kManyQueries,  // a row of several queries, where decodes alone are served
};
inline constexpr int kNumCascadeReasons = 6;

std::string_view ToString(CascadeReason reason);

struct CascadeDecision {
  CascadeReason reason = CascadeReason::kFewRows;
  double flat_us = 0;  // as the model has them; 0 where it was not asked
  double cascade_us = 0;

  bool use() const { return reason == CascadeReason::kUse; }
};

// "cascade: 30.1 us flat, 12.2 us with the prefix apart", "flat: fewer than two rows".
std::string ToString(const CascadeDecision& decision);
std::ostream& operator<<(std::ostream& out, const CascadeDecision& decision);

CascadeDecision ChooseCascade(const CascadeShape& shape, const CascadeCosts& costs);

}  // namespace reprise

#endif  // ATTENTION_CASCADE_RULE_H_
