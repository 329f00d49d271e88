// The statistics of a run of decode: times, speed, and the numbers of replayed and eager steps.
//
//   std::cerr << Summary(stats);        // a few lines for a reader
//   std::cout << ToJson(stats) << "\n"; // {"stats":{...}} for a program

#ifndef EXAMPLES_DECODE_STATS_H_
#define EXAMPLES_DECODE_STATS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/base/dtype.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/graphs/graph_report.h"

namespace reprise {

struct DecodeStats {
  std::string device;
  DType dtype = DType::kFloat32;
  double load_seconds = 0;         // model and tokenizer
  double first_token_seconds = 0;  // from the first step's start to the first token
  double generate_seconds = 0;     // from the first step's start to the last token
  int64_t num_prompts = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_generated_tokens = 0;
  int64_t num_preemptions = 0;
  int num_blocks = 0;  // of the KV cache, the null block included
  int block_size = 0;
  int peak_used_blocks = 0;
  std::vector<KvGroupSpec> kv_groups = {};  // the keys that layers keep of a sequence
  GraphReport graphs;
  std::optional<SpeculationStatistics> drafts = {};    // nullopt: without speculation
  std::optional<double> plain_tokens_per_second = {};  // of the same requests, without drafts

  // Generated tokens per second, the time of prompts included; 0 before the first token.
  double tokens_per_second() const;
};

// One line without its end: {"stats": {...}}. Times in seconds, except "graph_capture_ms".
// "eager_steps" maps every reason to a count, zero or not, spaces in its name replaced by "_".
// With drafts there are also "draft_rows", "drafts", "accepted_drafts", "tokens_per_draft_row" and
// "accepted_by_position", the accepted part of the first, second ... drafts of a row; and
// "plain_tokens_per_s" if that was measured.
// "kv_groups" is a list of "full", "window 4096", "chunk 8192", "cross".
std::string ToJson(const DecodeStats& stats);

// Lines for a terminal, each with its end.
std::string Summary(const DecodeStats& stats);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_STATS_H_
