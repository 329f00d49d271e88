// Arguments of the verification of drafts (runner/speculation/verify_drafts.h), and the work on one
// row, shared by the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

struct VerifyDraftsArgs {
  // [logits rows of the step] what the sequence itself chooses at each place: Sample() with
  // sample_offset. kNotSampled, kNanRow or a token.
  const int32_t* chosen = nullptr;
  SlotState slots;
  StepArrays arrays;
  int num_rows = 0;    // padded
  int max_drafts = 0;  // of the runner: new_tokens has 1 + max_drafts columns

  // Results; on a GPU they may be mapped host memory.
  int32_t* tokens = nullptr;      // [num_rows] the row's last new token, kNotSampled or kNanRow
  int32_t* num_new = nullptr;     // [num_rows] new tokens; 0 with kNotSampled and kNanRow
  int32_t* new_tokens = nullptr;  // [num_rows, 1 + max_drafts] the first num_new
  // Elements from one output to the next, of each of the three. Above 0 the results are those of
  // output arrays.output - 1, and with arrays.output 0 nothing is done but for last_place, which is -1:
  // so a graph may hold the call.
  int64_t output_stride = 0;
  // [num_rows] the row of logits that the last new token was chosen from; -1: none. May be absent.
  int32_t* last_place = nullptr;
  PlaceTokens place_tokens = {};  // written as histories are; tokens may be null
};

// Whether there is anything to do, and where the results go.
REPRISE_HOST_DEVICE constexpr bool HasOutput(const VerifyDraftsArgs& args) {
  return args.output_stride == 0 || *args.arrays.output > 0;
}
REPRISE_HOST_DEVICE constexpr int64_t OutputOffset(const VerifyDraftsArgs& args) {
  return args.output_stride == 0 ? 0 : (*args.arrays.output - 1) * args.output_stride;
}

// A row whose drafts are verified.
struct VerifiedRow {
  int32_t slot = -1;           // -1: the row does not sample
  int32_t num_drafts = 0;      // at most max_drafts
  int32_t first_token = 0;     // the row's, in token_ids
  int32_t first_verified = 0;  // the first token's row of logits; with drafts only
};

REPRISE_HOST_DEVICE constexpr VerifiedRow VerifiedRowOf(const VerifyDraftsArgs& args, int row_idx) {
  VerifiedRow row;
  const int32_t slot = args.arrays.sample_slot[row_idx];
  if (slot < 0 || slot >= args.slots.num_slots) return row;
  row.slot = slot;
  row.first_verified = args.arrays.first_verified[row_idx];
  if (row.first_verified < 0) return row;
  row.first_token = args.arrays.query_start_loc[row_idx];
  const int64_t after = int64_t{args.arrays.query_start_loc[row_idx + 1]} - row.first_token - 1;
  const int64_t most = args.max_drafts;
  row.num_drafts = static_cast<int32_t>(after < 0 ? 0 : (after < most ? after : most));
  return row;
}

// The row of logits of the `i`-th next place, and what the sequence chooses there, if all drafts
// before it are right: i is 0 to num_drafts. Negative: it cannot choose.
REPRISE_HOST_DEVICE constexpr int32_t PlaceAt(int row_idx, const VerifiedRow& row, int i) {
  return i < row.num_drafts ? row.first_verified + i : row_idx;
}
REPRISE_HOST_DEVICE constexpr int32_t ChosenAt(const VerifyDraftsArgs& args, int row_idx,
                                               const VerifiedRow& row, int i) {
  return args.chosen[PlaceAt(row_idx, row, i)];
}

// Whether the `i`-th draft, which is `chosen`'s place, is right.
REPRISE_HOST_DEVICE constexpr bool IsAccepted(const VerifyDraftsArgs& args, const VerifiedRow& row,
                                              int i, int32_t chosen) {
  return chosen >= 0 && chosen == args.arrays.token_ids[row.first_token + 1 + i];
}

// Writes the row's counts, and advances its slot by `num_new` tokens, the last of which is `last`,
// chosen from row `place` of logits; kNanRow with 0.
REPRISE_HOST_DEVICE constexpr void AdvanceVerified(const VerifyDraftsArgs& args, int row_idx,
                                                   const VerifiedRow& row, int num_new,
                                                   int32_t last, int32_t place) {
  const SlotState& slots = args.slots;
  const int32_t slot = row.slot;
  const int64_t offset = OutputOffset(args);
  args.tokens[offset + row_idx] = last;
  args.num_new[offset + row_idx] = num_new;
  if (args.last_place != nullptr) args.last_place[row_idx] = num_new > 0 ? place : -1;
  slots.last_token[slot] = num_new > 0 ? last : 0;
  // Refill has counted the keys of the token that the step began with.
  slots.sample_index[slot] += num_new > 0 ? num_new : 1;
  if (num_new > 1) slots.seq_len[slot] += num_new - 1;
  if (slots.drafted_len == nullptr || row.num_drafts == 0) return;
  const int64_t seen = int64_t{args.arrays.context_lens[row_idx]} + num_new;
  if (slots.drafted_len[slot] > seen) slots.drafted_len[slot] = static_cast<int32_t>(seen);
}

// Keeps the `i`-th new token of a row, a draft that was accepted, for drafters: in the slot's history,
// and where its keys are or, of a tree, where they move to. REQUIRES: i < row.num_drafts.
REPRISE_HOST_DEVICE constexpr void KeepAccepted(const VerifyDraftsArgs& args, int row_idx,
                                                const VerifiedRow& row, int i, int32_t token) {
  const TokenHistory& history = args.slots.history;
  const int64_t position = int64_t{args.arrays.context_lens[row_idx]} + 1 + i;
  if (history.tokens != nullptr && position < history.stride) {
    history.row(row.slot)[position] = token;
  }
  const PlaceTokens& places = args.place_tokens;
  if (places.tokens == nullptr) return;
  places.Keep(args.arrays.group_slots(places.group)[row.first_token + 1 + i], token);
}

// Writes the row's results, and advances its slot by `num_new` tokens, 0 to num_drafts + 1: those
// of the first places. Lanes: base/lanes.h.
template <typename Lanes>
REPRISE_HOST_DEVICE void WriteVerifiedRow(const Lanes& lanes, const VerifyDraftsArgs& args,
                                          int row_idx, const VerifiedRow& row, int num_new) {
  int32_t* new_tokens =
      args.new_tokens + OutputOffset(args) + row_idx * (int64_t{args.max_drafts} + 1);
  lanes.ForEach(num_new, [&](int i) {
    const int32_t token = ChosenAt(args, row_idx, row, i);
    new_tokens[i] = token;
    if (i < num_new - 1) KeepAccepted(args, row_idx, row, i, token);
  });
  lanes.ForEach(1, [&](int) {
    const int32_t place = num_new > 0 ? PlaceAt(row_idx, row, num_new - 1) : -1;
    AdvanceVerified(args, row_idx, row, num_new, num_new > 0 ? args.chosen[place] : kNanRow, place);
  });
}

// Of a row of a step without an output.
REPRISE_HOST_DEVICE constexpr void WriteNoOutput(const VerifyDraftsArgs& args, int row_idx) {
  if (args.last_place != nullptr) args.last_place[row_idx] = -1;
}

// Of a row that does not sample.
REPRISE_HOST_DEVICE constexpr void WriteNotSampled(const VerifyDraftsArgs& args, int row_idx) {
  const int64_t offset = OutputOffset(args);
  args.tokens[offset + row_idx] = kNotSampled;
  args.num_new[offset + row_idx] = 0;
  if (args.last_place != nullptr) args.last_place[row_idx] = -1;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_ARGS_H_
