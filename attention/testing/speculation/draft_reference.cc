#include "reprise/attention/testing/speculation/draft_reference.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace reprise {
namespace {

// A row of the step that gets drafts.
struct StepRow {
  int64_t first_token = 0;
  int64_t num_proposed = 0;
  int64_t last = 0;  // position of the sequence's last token
  int32_t slot = 0;
};

// Reads row r. Returns false if the row gets no drafts.
bool ReadRow(const DraftRowsArgs& args, int r, StepRow& row) {
  row = {.first_token = args.step.query_start_loc[r],
         .num_proposed = args.step.num_proposed[r],
         .last = args.step.context_lens[r],
         .slot = args.step.slot_of_row[r]};
  return row.num_proposed > 0 && row.slot >= 0 && row.slot < args.rows.table.num_tables &&
         row.first_token >= 0 && row.first_token + row.num_proposed < args.step.num_tokens;
}

int32_t ParentOf(const DraftRowsArgs& args, int r, const StepRow& row, int node) {
  const int64_t stride = args.step.parents.row_stride;
  return args.step.parents.nodes[(stride == -1 ? row.first_token : r * stride) + node];
}

// Returns the token chosen for a node of the pass, or a negative value if there is none.
int32_t ChosenFor(const DraftRowsArgs& args, int r, const StepRow& row, int node) {
  const DraftLevel& level = args.level;
  if (level.num_levels == 0) return args.chosen[r];
  if (level.ranks == nullptr) {
    return args.chosen[r * (level.end - level.first) + node - level.first];
  }
  const int32_t parent = ParentOf(args, r, row, node);
  if (parent < level.first_before || parent >= level.first) return -1;
  const int num_before = level.first - level.first_before;
  return args.chosen[level.ranks[node - 1] * level.rank_stride + r * num_before + parent -
                     level.first_before];
}

// Returns the path from a node of the pass to the root. Returns an empty path if the node's parent
// is not in an earlier level, or if a parent does not precede its child.
std::vector<int> PathOf(const DraftRowsArgs& args, int r, const StepRow& row, int node) {
  std::vector<int> path = {node};
  int32_t parent = ParentOf(args, r, row, node);
  if (parent < 0 || parent >= args.level.first) return {};
  while (parent >= 0) {
    if (parent >= path.back()) return {};
    path.push_back(parent);
    parent = ParentOf(args, r, row, parent);
  }
  return path;
}

// Whether the blocks of a group allow a row to write tokens [first, end) of its sequence.
bool HasBlocksFor(const RowArgs& rows, int32_t slot, int group, int64_t first, int64_t end) {
  const KvGroupSpec& spec = rows.groups[group];
  if (spec.retention == KvRetention::kCross) return true;
  for (int64_t position = first; position < end; ++position) {
    const int64_t column = position / rows.table.block_size;
    const int32_t block =
        rows.table.entries[group * rows.group_stride + slot * rows.table.row_stride + column];
    if (block >= 1 && block < rows.table.num_blocks) continue;
    if (block != 0) return false;
    // The last token that the row writes to this column, as seen by the row's last query.
    const int64_t newest = std::min((column + 1) * rows.table.block_size, end) - 1;
    const int64_t query = end - 1;
    const bool is_seen =
        spec.retention == KvRetention::kFull ||
        (spec.retention == KvRetention::kSlidingWindow ? newest > query - spec.span
                                                       : newest / spec.span == query / spec.span);
    if (is_seen) return false;
  }
  return true;
}

class Pass {
 public:
  explicit Pass(const DraftRowsArgs& args)
      : args_(args),
        arrays_(args.rows.arrays),
        is_tree_(args.level.num_levels > 0),
        first_node_(is_tree_ ? args.level.first : args.pass),
        end_node_(is_tree_ ? args.level.end : args.pass + 1) {}

  bool has_rows() const {
    return args_.pass < (is_tree_ ? args_.level.num_levels : args_.max_drafts);
  }

  void Keep(int r) {
    StepRow row;
    if (!ReadRow(args_, r, row)) return;
    if (arrays_.seq_lens[r] != 0) {
      args_.drafted_len[row.slot] = is_tree_ && args_.pass > 1
                                        ? static_cast<int32_t>(row.last + args_.pass)
                                        : arrays_.seq_lens[r];
    }
    for (int node = first_node_; node < end_node_ && node <= row.num_proposed; ++node) {
      const int32_t chosen = ChosenFor(args_, r, row, node);
      if (chosen < 0) continue;
      args_.step.token_ids[row.first_token + node] = chosen;
      if (args_.step.draft_logits != nullptr) {
        args_.step.draft_logits[row.first_token + node] =
            (args_.pass - 1) * args_.logits_stride + r;
      }
    }
  }

  void Write(int r) {
    StepRow row;
    RowFault fault = RowFault::kNone;
    std::vector<int32_t> tokens;
    int64_t first = 0;
    if (ReadRow(args_, r, row)) {
      first = args_.pass == 0 ? std::min<int64_t>(args_.drafted_len[row.slot], row.last)
                              : row.last + first_node_;
      if (row.last < 0) {
        fault = RowFault::kLength;
      } else {
        tokens = args_.pass == 0 ? Unseen(row, first) : Level(r, row);
      }
    }
    const int64_t limit = int64_t{args_.rows.table.max_blocks} * args_.rows.table.block_size;
    if (first + static_cast<int64_t>(tokens.size()) > limit) tokens.clear();
    if (!tokens.empty() && first < 0) {
      fault = RowFault::kLength;
      tokens.clear();
    }
    const int64_t end = first + static_cast<int64_t>(tokens.size());
    bool has_blocks = true;
    for (int group = 0; group < args_.rows.num_groups; ++group) {
      has_blocks = has_blocks && HasBlocksFor(args_.rows, row.slot, group, first, end);
    }
    bool is_tree = true;
    for (int node = first_node_; is_tree_ && args_.pass > 0 && !tokens.empty() && node < end_node_;
         ++node) {
      is_tree = is_tree && !PathOf(args_, r, row, node).empty();
    }
    if (!tokens.empty() && !has_blocks) {
      fault = RowFault::kNoBlock;
    } else if (!tokens.empty() && !is_tree) {
      fault = RowFault::kTree;
    }
    const bool is_live = !tokens.empty() && fault == RowFault::kNone;
    WriteRowOf(r, row, first, end, is_live, fault);
    for (size_t i = 0; i < tokens.size(); ++i) {
      WriteTokenOf(row, is_live ? first + static_cast<int64_t>(i) : -1, tokens[i]);
    }
    if (is_tree_ && args_.pass > 0) WriteNodesOf(r, row, is_live, static_cast<int>(tokens.size()));
  }

  void Finish() {
    arrays_.query_start_loc[args_.rows.num_rows] = token_;
    *args_.common_prefix_len = 0;
    while (token_ < args_.rows.num_tokens) WriteTokenOf({}, -1, 0);
  }

 private:
  // Returns the tokens, starting at position `first`, that the draft model has not processed.
  std::vector<int32_t> Unseen(const StepRow& row, int64_t first) const {
    std::vector<int32_t> tokens;
    for (int64_t p = first; p <= row.last && p - first <= args_.max_drafts; ++p) {
      int32_t token = 0;
      if (p == row.last) {
        token = args_.step.token_ids[row.first_token];
      } else if (p >= 0 && p < args_.history.stride) {
        token = std::max(args_.history.tokens[row.slot * args_.history.stride + p], 0);
      }
      tokens.push_back(token);
    }
    return tokens;
  }

  // Returns the tokens of the pass's nodes if drafts follow them; otherwise an empty list.
  std::vector<int32_t> Level(int r, const StepRow& row) const {
    if (end_node_ > row.num_proposed || ChosenFor(args_, r, row, first_node_) < 0) return {};
    std::vector<int32_t> tokens;
    for (int node = first_node_; node < end_node_; ++node) {
      tokens.push_back(std::max(ChosenFor(args_, r, row, node), 0));
    }
    return tokens;
  }

  void WriteRowOf(int r, const StepRow& row, int64_t first, int64_t end, bool is_live,
                  RowFault fault) {
    const bool is_level = is_tree_ && args_.pass > 0;
    arrays_.query_start_loc[r] = token_;
    arrays_.seq_lens[r] = is_live ? static_cast<int32_t>(end) : 0;
    arrays_.context_lens[r] = is_live ? static_cast<int32_t>(first) : 0;
    arrays_.table_row[r] = is_live ? row.slot : 0;
    args_.encoder_lens[r] = 0;
    if (arrays_.row_faults != nullptr) arrays_.row_faults[r] = static_cast<int32_t>(fault);
    if (args_.tail_len != nullptr) args_.tail_len[r] = is_level && is_live ? end_node_ : 0;
    if (is_level) return;
    arrays_.logits_indices[r] = is_live ? token_ + static_cast<int32_t>(end - first) - 1 : 0;
    args_.sample_slot[r] = is_live && end > row.last ? row.slot : -1;
    args_.sample_offset[r] = is_live ? args_.pass : 0;
  }

  // Writes the next token, at `position` of its sequence. A negative position makes it inert.
  void WriteTokenOf(const StepRow& row, int64_t position, int32_t id) {
    const RowArgs& rows = args_.rows;
    arrays_.token_ids[token_] = position < 0 ? 0 : id;
    arrays_.positions[token_] = position < 0 ? 0 : static_cast<int32_t>(position);
    for (int group = 0; group < rows.num_groups; ++group) {
      int32_t block = 0;
      if (position >= 0 && rows.groups[group].retention != KvRetention::kCross) {
        block = rows.table.entries[group * rows.group_stride + row.slot * rows.table.row_stride +
                                   position / rows.table.block_size];
      }
      arrays_.slot_mapping[group * arrays_.group_stride + token_] =
          block == 0 ? -1
                     : int64_t{block} * rows.table.block_size + position % rows.table.block_size;
    }
    ++token_;
  }

  // Writes the nodes of a level, whose tokens were written last.
  void WriteNodesOf(int r, const StepRow& row, bool is_live, int num_tokens) {
    const int width = end_node_ - first_node_;
    for (int i = 0; i < width; ++i) {
      const int logits = r * width + i;
      arrays_.logits_indices[logits] = 0;
      args_.sample_slot[logits] = -1;
      args_.sample_offset[logits] = 0;
      if (!is_live) continue;
      const std::vector<int> path = PathOf(args_, r, row, first_node_ + i);
      const int depth = static_cast<int>(path.size()) - 1;
      const int token = token_ - num_tokens + i;
      uint64_t mask = 0;
      for (int node : path) mask |= uint64_t{1} << node;
      arrays_.logits_indices[logits] = token;
      args_.sample_slot[logits] = row.slot;
      args_.sample_offset[logits] = depth;
      arrays_.positions[token] = static_cast<int32_t>(row.last) + depth;
      args_.tail_mask[token] = mask;
    }
  }

  const DraftRowsArgs& args_;
  const BatchArrays& arrays_;
  const bool is_tree_;
  const int first_node_;
  const int end_node_;
  int token_ = 0;
};

}  // namespace

void DraftRowsByDefinition(const DraftRowsArgs& args) {
  const int num_rows = args.rows.num_rows;
  if (num_rows == 0) return;
  Pass pass(args);
  for (int r = 0; args.pass > 0 && r < num_rows; ++r) pass.Keep(r);
  if (!pass.has_rows()) return;
  for (int r = 0; r < num_rows; ++r) pass.Write(r);
  pass.Finish();
}

}  // namespace reprise
