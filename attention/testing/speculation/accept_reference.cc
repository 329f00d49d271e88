#include "reprise/attention/testing/speculation/accept_reference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise {
namespace {

// The tokens of a row, the parent of each token, and the index of the choice after each token.
struct RowText {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;
  std::vector<int64_t> places;
  int64_t first_token = 0;
  bool has_drafts = false;
};

// Reads row r. Returns false if the row is out of bounds.
bool ReadRow(const AcceptDraftsArgs& args, int r, RowText& text) {
  text.has_drafts = args.first_verified == nullptr || args.first_verified[r] >= 0;
  if (!text.has_drafts) {
    text.tokens = {0};
    text.parents = {-1};
    text.places = {r};
    return true;
  }
  const int64_t first = args.query_start_loc[r];
  const int64_t end = args.query_start_loc[r + 1];
  const int64_t first_place = args.first_verified == nullptr ? first : args.first_verified[r];
  if (first < 0 || first >= end || end > args.num_tokens || args.context_lens[r] < 0) return false;
  if (first_place + (end - first - 1) > args.num_logits) return false;
  text.first_token = first;
  for (int64_t i = 0; i < end - first; ++i) {
    const bool is_last = first + i + 1 == end;
    const int64_t place = is_last && args.first_verified != nullptr ? r : first_place + i;
    text.places.push_back(place);
    text.tokens.push_back(args.token_ids[first + i]);
    if (i > args.max_drafts) continue;  // never accepted, so it needs no parent
    const int64_t stride = args.parents.row_stride;
    text.parents.push_back(args.parents.nodes == nullptr ? static_cast<int32_t>(i) - 1
                           : stride == -1                ? args.parents.nodes[first + i]
                                                         : args.parents.nodes[r * stride + i]);
  }
  return true;
}

// The new tokens, and the node whose choice each new token is.
struct NewText {
  std::vector<int32_t> tokens;
  std::vector<int> nodes;
};

NewText Walk(const AcceptDraftsArgs& args, const RowText& text) {
  NewText found;
  int node = 0;
  while (true) {
    const int32_t choice = args.chosen[text.places[node]];
    if (choice < 0) return found;
    found.tokens.push_back(choice);
    found.nodes.push_back(node);
    int next = -1;
    for (int i = static_cast<int>(text.parents.size()) - 1; i > node; --i) {
      if (text.parents[i] == node && text.tokens[i] == choice) next = i;
    }
    if (next < 0) return found;
    node = next;
  }
}

void WriteState(const AcceptDraftsArgs& args, int r, const RowText& text, const NewText& found) {
  const AcceptedSlots& state = args.slots;
  const int32_t slot = args.slot_of_row[r];
  const int n = static_cast<int>(found.tokens.size());
  if (state.last_token != nullptr) state.last_token[slot] = n == 0 ? 0 : found.tokens.back();
  if (state.sample_index != nullptr) state.sample_index[slot] += std::max(n, 1);
  if (state.seq_len != nullptr) state.seq_len[slot] += std::max(n, 1) - 1;
  if (!text.has_drafts) return;
  const int64_t next = int64_t{args.context_lens[r]} + 1;  // position of the first new token
  for (int i = 0; i + 1 < n; ++i) {
    if (state.history.tokens != nullptr && next + i < state.history.stride) {
      state.history.tokens[slot * state.history.stride + next + i] = found.tokens[i];
    }
    if (args.place_tokens.tokens == nullptr) continue;
    const int64_t place =
        args.slot_mapping[args.place_tokens.group * args.group_stride + text.first_token + 1 + i];
    if (place >= 0 && place < args.place_tokens.num_places) {
      args.place_tokens.tokens[place] = found.tokens[i];
    }
  }
  if (state.drafted_len != nullptr && text.tokens.size() > 1) {
    state.drafted_len[slot] =
        static_cast<int32_t>(std::min<int64_t>(state.drafted_len[slot], next - 1 + n));
  }
}

void WriteMoves(const AcceptDraftsArgs& args, int r, const RowText& text, const NewText& found) {
  for (int group = 0; group < args.num_groups; ++group) {
    for (size_t i = 1; i < found.nodes.size(); ++i) {
      const int64_t* slots = args.slot_mapping + group * args.group_stride + text.first_token;
      const int64_t from = slots[found.nodes[i]];
      const int64_t to = slots[i];
      if (found.nodes[i] == static_cast<int>(i) || from < 0 || to < 0) continue;
      const int64_t move =
          (int64_t{group} * args.num_rows + r) * args.max_drafts + static_cast<int64_t>(i) - 1;
      args.move_from[move] = from;
      args.move_to[move] = to;
    }
  }
}

void AcceptRowByDefinition(const AcceptDraftsArgs& args, int r) {
  if (args.last_place != nullptr) args.last_place[r] = -1;
  if (args.row_faults != nullptr) args.row_faults[r] = 0;
  int64_t output = 0;
  if (args.output_stride > 0) {
    if (*args.output == 0) return;
    output = (*args.output - 1) * args.output_stride;
  }
  args.tokens[output + r] = kNotSampled;
  args.num_new[output + r] = 0;
  const int32_t slot = args.slot_of_row[r];
  if (slot < 0) return;
  const auto fail = [&](RowFault fault) {
    if (args.row_faults != nullptr) args.row_faults[r] = static_cast<int32_t>(fault);
  };
  if (slot >= args.slots.num_slots) return fail(RowFault::kTableRow);
  RowText text;
  if (!ReadRow(args, r, text)) return fail(RowFault::kLength);
  const NewText found = Walk(args, text);
  if (!found.tokens.empty() && args.last_place != nullptr) {
    args.last_place[r] = static_cast<int32_t>(text.places[found.nodes.back()]);
  }
  args.tokens[output + r] = found.tokens.empty() ? kNanRow : found.tokens.back();
  args.num_new[output + r] = static_cast<int32_t>(found.tokens.size());
  std::copy(found.tokens.begin(), found.tokens.end(),
            args.new_tokens + output + r * args.new_tokens_stride);
  WriteState(args, r, text, found);
  if (args.parents.nodes != nullptr) WriteMoves(args, r, text, found);
}

}  // namespace

void AcceptByDefinition(const AcceptDraftsArgs& args) {
  if (args.parents.nodes != nullptr) {
    const int64_t num_moves = int64_t{args.num_groups} * args.num_rows * args.max_drafts;
    std::fill_n(args.move_from, num_moves, -1);
    std::fill_n(args.move_to, num_moves, -1);
  }
  for (int r = 0; r < args.num_rows; ++r) AcceptRowByDefinition(args, r);
}

}  // namespace reprise
