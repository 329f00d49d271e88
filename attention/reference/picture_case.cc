#include "reprise/attention/reference/picture_case.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/context_parallel.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/attention/reference/batch_picture.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

// A block table for rows with the given lengths.
struct Table {
  Table(const std::vector<int32_t>& lens, int block_size)
      : block_size(block_size), num_tables(static_cast<int>(lens.size())) {
    for (int32_t length : lens) {
      max_blocks = std::max(max_blocks, NumBlocksFor(std::max(length, 0), block_size));
    }
    entries.assign(lens.size() * max_blocks, 0);
    int32_t next = 1;
    for (size_t row = 0; row < lens.size(); ++row) {
      const int num_blocks = NumBlocksFor(std::max(lens[row], 0), block_size);
      const auto first = entries.begin() + static_cast<ptrdiff_t>(row) * max_blocks;
      std::iota(first, first + num_blocks, next);
      next += num_blocks;
    }
  }

  BlockTableView View() const {
    return {.entries = entries.data(),
            .row_stride = max_blocks,
            .num_tables = num_tables,
            .max_blocks = max_blocks,
            .block_size = block_size};
  }

  int block_size;
  int num_tables;
  int max_blocks = 0;
  std::vector<int32_t> entries;
};

// Arrays of a batch. Row r uses table row r.
struct BatchMemory {
  enum class Tails { kNone, kGiven };

  BatchMemory(int num_rows, int num_tokens)
      : slots(num_rows),
        ints(4 * num_rows + 1 + num_tokens),
        slot_mapping(num_tokens),
        tail_mask(num_tokens),
        row_faults(num_rows),
        num_rows(num_rows) {
    std::iota(slots.begin(), slots.end(), 0);
  }

  BatchArrays Arrays(Tails tails) {
    BatchArrays arrays = {.positions = ints.data() + 4 * num_rows + 1,
                          .slot_mapping = slot_mapping.data(),
                          .query_start_loc = ints.data(),
                          .seq_lens = ints.data() + num_rows + 1,
                          .table_row = ints.data() + 2 * num_rows + 1,
                          .row_faults = row_faults.data()};
    if (tails == Tails::kGiven) {
      arrays.tail_len = ints.data() + 3 * num_rows + 1;
      arrays.tail_mask = tail_mask.data();
    }
    return arrays;
  }

  std::vector<int32_t> slots, ints;
  std::vector<int64_t> slot_mapping;
  std::vector<uint64_t> tail_mask;
  std::vector<int32_t> row_faults;
  int num_rows;
};

absl::Status CheckSameLength(absl::string_view name, size_t got, absl::string_view other,
                             size_t expected) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, " (length of ", other, "), got ", got));
}

absl::Status CheckCase(const PictureCase& picture) {
  REPRISE_RETURN_IF_ERROR(CheckSameLength("seq_lens", picture.seq_lens.size(), "query_lens",
                                          picture.query_lens.size()));
  if (!picture.encoder_lens.empty()) {
    REPRISE_RETURN_IF_ERROR(CheckSameLength("encoder_lens", picture.encoder_lens.size(),
                                            "query_lens", picture.query_lens.size()));
  }
  for (size_t r = 0; r < picture.query_lens.size(); ++r) {
    if (picture.query_lens[r] <= picture.seq_lens[r]) continue;
    return absl::InvalidArgumentError(absl::StrCat("seq_lens[", r, "]: expected at least ",
                                                   picture.query_lens[r], " (its query_len), got ",
                                                   picture.seq_lens[r]));
  }
  for (size_t r = 0; r < picture.query_lens.size() && !picture.tree.empty(); ++r) {
    REPRISE_RETURN_IF_ERROR(CheckSameLength(absl::StrCat("query_lens[", r, "]"),
                                            picture.query_lens[r], "tree", picture.tree.size()));
  }
  if (picture.ranks && (*picture.ranks < 1 || picture.interleave < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks and interleave: expected at least 1, got ", *picture.ranks, " and ",
                     picture.interleave));
  }
  if (picture.block_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("block_size: expected at least 1, got ", picture.block_size));
}

class CaseDrawing {
 public:
  explicit CaseDrawing(const PictureCase& picture)
      : picture_(picture), options_({.block_size = picture.block_size}) {
    layer_.num_q_heads = layer_.num_kv_heads = 1;
    layer_.head_dim_qk = layer_.head_dim_v = 1;
    layer_.window_left = picture.window_left;
    layer_.window_right = picture.window_right;
  }

  absl::Status DrawRows() {
    const int num_rows = static_cast<int>(picture_.query_lens.size());
    const Table table(picture_.seq_lens, picture_.block_size);
    std::vector<BatchSequence> sequences;
    int64_t num_tokens = 0;
    for (int r = 0; r < num_rows; ++r) {
      sequences.push_back({.table_row = r,
                           .num_computed = picture_.seq_lens[r] - picture_.query_lens[r],
                           .query_len = picture_.query_lens[r]});
      num_tokens += std::max(0, picture_.query_lens[r]);
    }
    REPRISE_ASSIGN_OR_RETURN(
        BatchBuilder builder,
        BatchBuilder::Create({.max_rows = num_rows, .max_tokens = static_cast<int>(num_tokens)}));
    REPRISE_ASSIGN_OR_RETURN(const BuiltBatch built,
                             builder.Build({.sequences = sequences, .table = table.View()}));
    Add("rows", DrawBatch(built.batch, layer_, options_));
    if (picture_.chunk_size) REPRISE_RETURN_IF_ERROR(DrawChunks(built.batch));
    if (!picture_.encoder_lens.empty()) REPRISE_RETURN_IF_ERROR(DrawCross(built.batch));
    if (!picture_.tree.empty()) REPRISE_RETURN_IF_ERROR(DrawTree(built.batch));
    for (int rank = 0; rank < picture_.ranks.value_or(0); ++rank) {
      REPRISE_RETURN_IF_ERROR(DrawRank(built.batch, rank));
    }
    return absl::OkStatus();
  }

  absl::Status DrawRagged(absl::string_view heading, const std::vector<int32_t>& lens,
                          RaggedKind kind) {
    int64_t num_tokens = 0;
    for (int32_t length : lens) num_tokens += std::max(0, length);
    std::vector<int32_t> query_start_loc(lens.size() + 1), key_start_loc(lens.size() + 1);
    std::vector<int32_t> positions(num_tokens);
    REPRISE_ASSIGN_OR_RETURN(const RaggedBatch batch,
                             BuildRaggedGather({.lens = lens.data(),
                                                .kind = kind,
                                                .num_rows = static_cast<int>(lens.size()),
                                                .num_tokens = static_cast<int>(num_tokens),
                                                .max_len = static_cast<int>(num_tokens),
                                                .query_start_loc = query_start_loc.data(),
                                                .key_start_loc = key_start_loc.data(),
                                                .positions = positions.data()}));
    Add(heading, DrawBatch(batch, layer_, options_));
    return absl::OkStatus();
  }

  const std::string& text() const { return text_; }

 private:
  void Add(absl::string_view heading, const std::string& drawing) {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", heading, "\n", drawing);
  }

  absl::Status DrawChunks(const PagedBatch& rows) {
    if (*picture_.chunk_size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk_size: expected at least 1, got ", *picture_.chunk_size));
    }
    const int max_rows = MaxLocalRows(rows.num_rows, rows.num_tokens, *picture_.chunk_size);
    std::vector<int32_t> loc(max_rows + 1), lens(max_rows), table_row(max_rows), start(max_rows);
    REPRISE_ASSIGN_OR_RETURN(const PagedBatch local,
                             BuildLocalVirtualBatch({.batch = rows,
                                                     .chunk_size = *picture_.chunk_size,
                                                     .buffers = {.query_start_loc = loc.data(),
                                                                 .seq_lens = lens.data(),
                                                                 .table_row = table_row.data(),
                                                                 .key_start = start.data(),
                                                                 .max_rows = max_rows}}));
    Add(absl::StrCat("virtual rows of chunks of ", *picture_.chunk_size),
        DrawBatch(local, layer_, options_));
    return absl::OkStatus();
  }

  absl::Status DrawCross(const PagedBatch& rows) {
    const Table table(picture_.encoder_lens, picture_.block_size);
    std::vector<int32_t> seq_lens(rows.num_rows);
    REPRISE_ASSIGN_OR_RETURN(
        const PagedBatch cross,
        BuildCrossBatch({.rows = rows,
                         .encoder_lens = picture_.encoder_lens.data(),
                         .table = table.View(),
                         .max_encoder_len = table.max_blocks * table.block_size,
                         .seq_lens = seq_lens.data()}));
    Add("the encoder's keys", DrawBatch(cross, layer_, options_));
    return absl::OkStatus();
  }

  // Returns the number of tokens in the cache before the step, by row.
  std::vector<int32_t> Cached() const {
    std::vector<int32_t> cached = picture_.seq_lens;
    for (size_t r = 0; r < cached.size(); ++r) cached[r] -= picture_.query_lens[r];
    return cached;
  }

  absl::Status DrawTree(const PagedBatch& rows) {
    const Table table(picture_.seq_lens, picture_.block_size);
    const std::vector<int32_t> cached = Cached();
    const std::vector<int32_t> num_nodes(rows.num_rows, static_cast<int>(picture_.tree.size()));
    BatchMemory memory(rows.num_rows, rows.num_tokens);
    REPRISE_ASSIGN_OR_RETURN(const PagedBatch tree,
                             BuildTreeBatch({.slots = memory.slots.data(),
                                             .seq_len = cached.data(),
                                             .num_nodes = num_nodes.data(),
                                             .parents = picture_.tree.data(),
                                             .table = table.View(),
                                             .max_context_len = INT32_MAX,
                                             .num_rows = rows.num_rows,
                                             .num_tokens = rows.num_tokens,
                                             .max_nodes = static_cast<int>(picture_.tree.size()),
                                             .arrays = memory.Arrays(BatchMemory::Tails::kGiven)}));
    Add("a token tree", DrawBatch(tree, layer_, options_));
    return absl::OkStatus();
  }

  absl::Status DrawRank(const PagedBatch& rows, int rank) {
    const KeyPositions keys = {
        .rank = rank, .world = *picture_.ranks, .interleave = picture_.interleave};
    // One more cycle of room, so that no rank's table limits the context.
    std::vector<int32_t> local_lens = picture_.seq_lens;
    for (int32_t& length : local_lens) {
      length = static_cast<int32_t>(LocalLen(length + CycleLen(keys), keys));
    }
    const Table table(local_lens, picture_.block_size);
    const std::vector<int32_t> cached = Cached();
    BatchMemory memory(rows.num_rows, rows.num_tokens);
    REPRISE_ASSIGN_OR_RETURN(
        const PagedBatch local,
        BuildBatchGather({.table_row = memory.slots.data(),
                          .query_lens = picture_.query_lens.data(),
                          .table_seq_lens = cached.data(),
                          .seq_len_form = SeqLenForm::kBeforeStep,
                          .table = table.View(),
                          .key_positions = keys,
                          .null_blocks = NullBlocks::kByRetention,
                          .num_rows = rows.num_rows,
                          .num_tokens = rows.num_tokens,
                          .max_query_len = rows.max_query_len,
                          .arrays = memory.Arrays(BatchMemory::Tails::kNone)}));
    Add(absl::StrCat("the keys of rank ", rank), DrawBatch(local, layer_, options_));
    return absl::OkStatus();
  }

  const PictureCase& picture_;
  AttentionParams layer_;
  PictureOptions options_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> DrawCase(const PictureCase& picture) {
  REPRISE_RETURN_IF_ERROR(CheckCase(picture));
  CaseDrawing drawing(picture);
  if (!picture.query_lens.empty()) REPRISE_RETURN_IF_ERROR(drawing.DrawRows());
  if (!picture.encoder_inputs.empty()) {
    REPRISE_RETURN_IF_ERROR(
        drawing.DrawRagged("encoder inputs", picture.encoder_inputs, RaggedKind::kEncoder));
  }
  if (!picture.profile_inputs.empty()) {
    REPRISE_RETURN_IF_ERROR(
        drawing.DrawRagged("a profile run", picture.profile_inputs, RaggedKind::kProfile));
  }
  return drawing.text();
}

}  // namespace reprise
