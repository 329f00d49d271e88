// Arguments of drafts from a sequence's own tokens (runner/speculation/ngram_drafts.h), and the
// search of one row, shared by the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

// The longest n-gram that is searched for.
inline constexpr int kMaxNgram = 16;

struct NgramDraftsArgs {
  SlotState slots;  // history
  StepArrays
      arrays;  // of the step, refilled: table_row, context_lens, query_start_loc, num_proposed;
               // token_ids written
  int num_rows = 0;  // padded
  int min_ngram = 1;
  int max_ngram = 4;
};

// The text of a row: the history, then the token that the row begins with.
struct NgramText {
  const int32_t* history = nullptr;  // [last]
  int32_t last = 0;                  // position of the row's first token
  int32_t last_token = 0;
  int32_t* drafts = nullptr;  // [num_drafts] ids of the tokens behind it
  int32_t num_drafts = 0;     // 0: nothing to search for

  constexpr int32_t at(int64_t position) const {
    return position < last ? history[position] : last_token;
  }
};

REPRISE_HOST_DEVICE constexpr NgramText NgramTextOf(const NgramDraftsArgs& args, int row_idx) {
  NgramText text;
  const int32_t slot = args.arrays.table_row[row_idx];
  if (slot < 0 || slot >= args.slots.num_slots) return text;
  text.last = args.arrays.context_lens[row_idx];
  if (text.last < 1 || text.last > args.slots.history.stride) return text;
  const int32_t first_token = args.arrays.query_start_loc[row_idx];
  text.history = args.slots.history.row(slot);
  text.last_token = args.arrays.token_ids[first_token];
  text.drafts = args.arrays.token_ids + first_token + 1;
  text.num_drafts = args.arrays.num_proposed[row_idx];
  return text;
}

// Tokens that the text up to position `end` and the whole text end in alike, at most max_ngram.
// suffix[i] is the text's token i places before its last, for all i <= end.
REPRISE_HOST_DEVICE constexpr int MatchLength(const NgramText& text, const int32_t* suffix,
                                              int32_t end, int max_ngram) {
  int length = 0;
  while (length < max_ngram && length <= end && suffix[length] >= 0 &&
         text.history[end - length] == suffix[length]) {
    ++length;
  }
  return length;
}

// The better a match, the larger: the longer one, of equals the one that ends later. 0: no match.
REPRISE_HOST_DEVICE constexpr uint64_t RankMatch(int length, int32_t end, int min_ngram) {
  if (length < min_ngram) return 0;
  return static_cast<uint64_t>(length) << 32 | static_cast<uint32_t>(end);
}

// The i-th draft if the best match ends at `end`. Behind the end of the text the drafts follow.
REPRISE_HOST_DEVICE constexpr int32_t NgramDraftAt(const NgramText& text, int32_t end, int i) {
  const int32_t token = text.at(int64_t{end} + 1 + i % (text.last - end));
  return token > 0 ? token : 0;
}

constexpr int32_t EndOfMatch(uint64_t rank) { return static_cast<int32_t>(rank & 0xffffffffu); }

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
