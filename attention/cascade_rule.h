// Whether to read a shared prefix once for all rows (cascade attention), or flat, row by row. D3,
// D13.
//
//   const CascadeDecision decision = ChooseCascade({.num_rows = 64, .num_tokens = 64,
//       .common_prefix_len = 4096, .num_suffix_keys = 64 * 300, .num_q_heads = 32, ...});
//   if (decision.use()) batch.common_prefix_len = ...;
//   LOG(INFO) << decision;   // "flat: not quicker: 21.0 us flat, 24.5 us with the prefix apart"
//
// A rule from a cost model of one attention call. With b bytes a key, P keys of prefix, S keys of
// all suffixes, R rows:
//
//   flat     = (P + S) b / read + (R - 1) P b / reread
//   cascade  = (P + S) b / read + (T - 1) P b / reread + fixed + merge * tokens
//
// `read` is what the card reads from memory; `reread` what it reads of bytes that another row has
// just read, from the L2 as long as the prefix fits into it, else it is `read`. T is how many
// tiles of queries the prefix is read for: tokens * group_size / tile_queries, rounded up. The
// constants are those of the kernels on a card; see docs/metadata.md for what was measured.
//
// Pure functions of host values.

#ifndef ATTENTION_CASCADE_RULE_H_
#define ATTENTION_CASCADE_RULE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

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
  int bytes_per_element = 2;  // of the cache
  std::optional<int> window_left = {};
};

// The kernels on a card.
struct CascadeCosts {
  double read_tb_per_s = 0;    // from memory
  double reread_tb_per_s = 0;  // of what is in the L2
  int64_t l2_bytes = 0;        // that a prefix may take of it
  double fixed_us = 0;         // of the segments' plan and the second wave
  double merge_us_per_token = 0;
  int tile_queries = 64;     // queries (tokens * group_size) that read a key together
  double least_gain = 0.05;  // of the flat time, below which flat stays
};

// One H200: what docs/metadata.md says how it was measured.
CascadeCosts H200CascadeCosts();

enum class CascadeReason {
  kUse,
  kFewRows,     // fewer than two rows: nothing is shared
  kNoPrefix,    // no whole block in common
  kWindow,      // the window hides some of the prefix from some row
  kNotQuicker,  // the model says so
};

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
