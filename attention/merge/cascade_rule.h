// Decides whether to read a shared prefix once for all rows (cascade attention), or once per row
// (flat). D3, D13.
//
//   const CascadeDecision decision = ChooseCascade({.num_rows = 64, .num_tokens = 64,
//       .common_prefix_len = 4096, .num_suffix_keys = 64 * 300, .num_q_heads = 32, ...},
//       H200Profile().cascade_costs);
//   if (decision.use()) batch.common_prefix_len = ...;
//   LOG(INFO) << decision;   // "flat: not quicker: 21.0 us flat, 24.5 us with the prefix apart"
//
// The rule uses a cost model of one layer's attention. Let b be the bytes per key, P the keys of
// the prefix, S the keys of all suffixes, R the number of rows, N the number of queries (tokens),
// and T the number of query tiles that read the prefix (1 if tile_queries is 0):
//
//   flat     = call + (P + S) b / read + (R - 1) P b / reread
//   cascade  = call + P b / read + S b / suffix_read + (T - 1) P b / tile_reread + prefix
//              + products + merge + merge_token N
//
// flat: every row reads the prefix. The first read comes from memory, and the reads of the other,
// concurrent rows from L2. cascade: the prefix is read in a pass of all queries over it
// (`products`: 2 N P num_q_heads (head_dim_qk + head_dim_v) operations), each row reads its suffix,
// and the two results are merged (attention/merge/merge_states.h, or within the launch). Cascade is
// used if it saves at least the fraction CascadeCosts::min_gain of `flat`. The costs are measured
// per GPU: attention/device_profile.h.
//
// Pure functions of host values.

#ifndef REPRISE_ATTENTION_MERGE_CASCADE_RULE_H_
#define REPRISE_ATTENTION_MERGE_CASCADE_RULE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "reprise/attention/device_profile.h"

namespace reprise {

// The shape of one layer's attention.
struct CascadeShape {
  int num_rows = 0;    // live rows
  int num_tokens = 0;  // queries of all live rows
  int64_t common_prefix_len = 0;
  int64_t num_suffix_keys = 0;  // sum over rows of seq_len - common_prefix_len
  int64_t max_seq_len = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  bool v_in_k = false;        // V is the first columns of K and is not read separately
  int bytes_per_element = 2;  // element size of the cache
  // queries that read the prefix together (KernelSchedule::tile_queries); 0: all queries
  int tile_queries = 0;
  std::optional<int> window_left = {};
};

enum class CascadeReason {
  kUse,
  kFewRows,      // fewer than two rows
  kNoPrefix,     // no common whole block
  kWindow,       // the window is shorter than max_seq_len, so it hides keys from some row
  kNotQuicker,   // the cost model predicts no gain
  kManyQueries,  // for callers that support only decodes: a row has several queries
};
inline constexpr int kNumCascadeReasons = 6;

std::string_view ToString(CascadeReason reason);

struct CascadeDecision {
  CascadeReason reason = CascadeReason::kFewRows;
  double flat_us = 0;  // predicted time; 0: the model was not evaluated
  double cascade_us = 0;

  bool use() const { return reason == CascadeReason::kUse; }
};

// "cascade: 30.1 us flat, 12.2 us with the prefix apart", "flat: fewer than two rows".
std::string ToString(const CascadeDecision& decision);
std::ostream& operator<<(std::ostream& out, const CascadeDecision& decision);

CascadeDecision ChooseCascade(const CascadeShape& shape, const CascadeCosts& costs);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_CASCADE_RULE_H_
