#include "reprise/runner/speculation/ngram_drafts.h"

#include <algorithm>

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckNgramDrafts(const NgramDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.arrays.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_ngram", args.max_ngram, 1, kMaxNgram));
  REPRISE_RETURN_IF_ERROR(CheckBetween("min_ngram", args.min_ngram, 1, args.max_ngram));
  if (args.num_rows == 0) return absl::OkStatus();
  return CheckGiven({{"slots.history", args.slots.history.tokens},
                     {"arrays.token_ids", args.arrays.token_ids},
                     {"arrays.query_start_loc", args.arrays.query_start_loc},
                     {"arrays.context_lens", args.arrays.context_lens},
                     {"arrays.table_row", args.arrays.table_row},
                     {"arrays.num_proposed", args.arrays.num_proposed}});
}

void NgramDraftsOnHost(const NgramDraftsArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) {
    const NgramText text = NgramTextOf(args, r);
    if (text.num_drafts <= 0) continue;
    int32_t suffix[kMaxNgram];
    for (int i = 0; i < args.max_ngram && i <= text.last; ++i) suffix[i] = text.at(text.last - i);
    uint64_t best = 0;
    for (int32_t end = 0; end < text.last; ++end) {
      const int length = MatchLength(text, suffix, end, args.max_ngram);
      best = std::max(best, RankMatch(length, end, args.min_ngram));
    }
    if (best == 0) continue;
    for (int i = 0; i < text.num_drafts; ++i) {
      text.drafts[i] = NgramDraftAt(text, EndOfMatch(best), i);
    }
  }
}

}  // namespace reprise
