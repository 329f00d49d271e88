// Arguments of LaunchNgramDrafts() (runner/speculation/ngram_drafts.h), and the search for one row,
// which the host and device forms share.

#ifndef REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

// Maximum length of an n-gram.
inline constexpr int kMaxNgram = 16;

struct NgramDraftsArgs {
  SlotState slots;  // history
  // The step's arrays, after refill. Reads table_row, context_lens, query_start_loc, num_proposed
  // and the rows' first token_ids; writes the other token_ids.
  StepArrays arrays;
  int num_rows = 0;  // padded
  int min_ngram = 1;
  int max_ngram = 4;
};

// The tokens of a row: the history, then the row's first token.
struct NgramText {
  const int32_t* history = nullptr;  // [last]
  int32_t last = 0;                  // position of the row's first token
  int32_t last_token = 0;
  int32_t* drafts = nullptr;  // [num_drafts] the row's draft tokens, to be written
  int32_t num_drafts = 0;     // 0: the row has no search

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

// Returns the length of the longest common suffix of text[0, end] and the whole text, at most
// max_ngram. suffix[i] is the i-th token from the end of the text; its first min(max_ngram, end +
// 1) entries must be valid.
REPRISE_HOST_DEVICE constexpr int MatchLength(const NgramText& text, const int32_t* suffix,
                                              int32_t end, int max_ngram) {
  int length = 0;
  while (length < max_ngram && length <= end && suffix[length] >= 0 &&
         text.history[end - length] == suffix[length]) {
    ++length;
  }
  return length;
}

// Ranks a match: longer matches rank higher, and of two equally long ones the later. 0: no match.
REPRISE_HOST_DEVICE constexpr uint64_t RankMatch(int length, int32_t end, int min_ngram) {
  if (length < min_ngram) return 0;
  return static_cast<uint64_t>(length) << 32 | static_cast<uint32_t>(end);
}

// Returns draft `i` if the best match ends at `end`. After the end of the text, drafts repeat
// earlier drafts.
REPRISE_HOST_DEVICE constexpr int32_t NgramDraftAt(const NgramText& text, int32_t end, int i) {
  const int32_t token = text.at(int64_t{end} + 1 + i % (text.last - end));
  return token > 0 ? token : 0;
}

constexpr int32_t EndOfMatch(uint64_t rank) { return static_cast<int32_t>(rank & 0xffffffffu); }

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_ARGS_H_
