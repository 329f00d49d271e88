#include "examples/decode/stats.h"

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "reprise/graphs/graph_key.h"

namespace reprise {
namespace {

// Calls `visit` with each reason to run eagerly.
template <typename Visitor>
void ForEachReason(Visitor&& visit) {
  for (int i = 0; i < kNumEagerReasons; ++i) {
    const auto reason = static_cast<EagerReason>(i);
    if (reason != EagerReason::kNone) visit(reason);
  }
}

// The accepted part of the first, second ... drafts of a row, as far as rows had any.
std::vector<double> AcceptedByPosition(const SpeculationStatistics& drafts) {
  std::vector<double> parts;
  for (size_t i = 0; i < drafts.num_drafts_at.size() && drafts.num_drafts_at[i] > 0; ++i) {
    parts.push_back(static_cast<double>(drafts.num_accepted_at[i]) /
                    static_cast<double>(drafts.num_drafts_at[i]));
  }
  return parts;
}

std::string Name(const KvGroupSpec& group) {
  switch (group.retention) {
    case KvRetention::kFull:
      return "full";
    case KvRetention::kSlidingWindow:
      return absl::StrCat("window ", group.span);
    case KvRetention::kChunkedLocal:
      return absl::StrCat("chunk ", group.span);
    case KvRetention::kCross:
      return "cross";
  }
  return "";
}

}  // namespace

double DecodeStats::tokens_per_second() const {
  if (generate_seconds <= 0) return 0;
  return static_cast<double>(num_generated_tokens) / generate_seconds;
}

std::string ToJson(const DecodeStats& stats) {
  nlohmann::ordered_json eager;
  ForEachReason([&](EagerReason reason) {
    const std::string name =
        absl::StrReplaceAll(std::string(EagerReasonName(reason)), {{" ", "_"}});
    eager[name] = stats.graphs.num_eager_steps(reason);
  });
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const KvGroupSpec& group : stats.kv_groups) groups.push_back(Name(group));
  nlohmann::ordered_json fields = {{"device", stats.device},
                                   {"dtype", std::string(DTypeName(stats.dtype))},
                                   {"load_s", stats.load_seconds},
                                   {"first_token_s", stats.first_token_seconds},
                                   {"generate_s", stats.generate_seconds},
                                   {"prompts", stats.num_prompts},
                                   {"prompt_tokens", stats.num_prompt_tokens},
                                   {"generated_tokens", stats.num_generated_tokens},
                                   {"tokens_per_s", stats.tokens_per_second()},
                                   {"steps", stats.graphs.num_steps()},
                                   {"graph_hits", stats.graphs.num_replays()},
                                   {"graphs", stats.graphs.graphs().size()},
                                   {"graph_bytes", stats.graphs.graph_bytes()},
                                   {"graph_capture_ms", stats.graphs.capture_ms()},
                                   {"eager_steps", eager},
                                   {"live_rows", stats.graphs.live_rows()},
                                   {"padded_rows", stats.graphs.padded_rows()},
                                   {"num_blocks", stats.num_blocks},
                                   {"block_size", stats.block_size},
                                   {"peak_used_blocks", stats.peak_used_blocks},
                                   {"kv_groups", groups},
                                   {"preemptions", stats.num_preemptions}};
  if (stats.drafts.has_value()) {
    fields["draft_rows"] = stats.drafts->num_rows;
    fields["drafts"] = stats.drafts->num_drafts;
    fields["accepted_drafts"] = stats.drafts->num_accepted;
    fields["tokens_per_draft_row"] = stats.drafts->tokens_per_row();
    fields["accepted_by_position"] = AcceptedByPosition(*stats.drafts);
  }
  if (stats.plain_tokens_per_second.has_value()) {
    fields["plain_tokens_per_s"] = *stats.plain_tokens_per_second;
  }
  return nlohmann::ordered_json{{"stats", fields}}.dump();
}

std::string Summary(const DecodeStats& stats) {
  std::string summary = absl::StrFormat(
      "%d tokens from %d prompt%s (%d tokens) in %.2f s: %.1f tokens/s, the first after %.0f ms\n",
      stats.num_generated_tokens, stats.num_prompts, stats.num_prompts == 1 ? "" : "s",
      stats.num_prompt_tokens, stats.generate_seconds, stats.tokens_per_second(),
      stats.first_token_seconds * 1000);
  absl::StrAppendFormat(&summary, "%d steps: %d replayed graphs", stats.graphs.num_steps(),
                        stats.graphs.num_replays());
  ForEachReason([&](EagerReason reason) {
    const int64_t count = stats.graphs.num_eager_steps(reason);
    if (count > 0) {
      absl::StrAppend(&summary, ", ", count, " eager (", std::string(EagerReasonName(reason)), ")");
    }
  });
  absl::StrAppendFormat(
      &summary,
      "; %d padded rows\n%s, %s, loaded in %.2f s; at most %d of %d blocks of %d tokens\n",
      stats.graphs.padded_rows(), stats.device, std::string(DTypeName(stats.dtype)),
      stats.load_seconds, stats.peak_used_blocks, stats.num_blocks - 1, stats.block_size);
  if (stats.drafts.has_value()) {
    absl::StrAppendFormat(&summary, "%d of %d drafts accepted, %.2f tokens a row with drafts",
                          stats.drafts->num_accepted, stats.drafts->num_drafts,
                          stats.drafts->tokens_per_row());
    const std::vector<double> parts = AcceptedByPosition(*stats.drafts);
    for (size_t i = 0; i < parts.size(); ++i) {
      absl::StrAppendFormat(&summary, "%s%.0f%%", i == 0 ? "; by position " : ", ", 100 * parts[i]);
    }
    absl::StrAppend(&summary, "\n");
  }
  if (stats.plain_tokens_per_second.has_value()) {
    absl::StrAppendFormat(&summary, "without drafts %.1f tokens/s\n",
                          *stats.plain_tokens_per_second);
  }
  return summary;
}

}  // namespace reprise
