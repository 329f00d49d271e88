#include "attention/picture_case.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "attention/batch_builder.h"
#include "attention/batch_picture.h"
#include "attention/cross_batch.h"
#include "attention/local_virtual_batch.h"
#include "attention/ragged_builder.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

// A table of blocks for rows of these lengths.
struct Table {
  Table(const std::vector<int32_t>& lens, int block_size)
      : block_size(block_size), num_tables(static_cast<int>(lens.size())) {
    for (int32_t length : lens) {
      max_blocks = std::max(max_blocks, (std::max(length, 0) + block_size - 1) / block_size);
    }
    entries.assign(lens.size() * max_blocks, 0);
    int32_t next = 1;
    for (size_t row = 0; row < lens.size(); ++row) {
      const int num_blocks = (std::max(lens[row], 0) + block_size - 1) / block_size;
      std::iota(&entries[row * max_blocks], &entries[row * max_blocks] + num_blocks, next);
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

absl::Status CheckSameLength(absl::string_view name, size_t got, absl::string_view other,
                             size_t expected) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, " as ", other, ", got ", got));
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
                                                   picture.query_lens[r], " (its queries), got ",
                                                   picture.seq_lens[r]));
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
    return absl::OkStatus();
  }

  absl::Status DrawRagged(absl::string_view heading, const std::vector<int32_t>& lens,
                          RaggedKind kind) {
    int64_t num_tokens = 0;
    for (int32_t length : lens) num_tokens += std::max(0, length);
    std::vector<int32_t> query_start_loc(lens.size() + 1), key_start_loc(lens.size() + 1);
    std::vector<int32_t> positions(num_tokens);
    std::vector<int64_t> slot_mapping(num_tokens);
    REPRISE_ASSIGN_OR_RETURN(const BuiltRaggedBatch built,
                             BuildRaggedBatch({.lens = lens, .kind = kind},
                                              {.query_start_loc = absl::MakeSpan(query_start_loc),
                                               .key_start_loc = absl::MakeSpan(key_start_loc),
                                               .positions = absl::MakeSpan(positions),
                                               .slot_mapping = absl::MakeSpan(slot_mapping)}));
    Add(heading, DrawBatch(built.batch, layer_, options_));
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
                             BuildLocalVirtualBatch(rows, *picture_.chunk_size,
                                                    {.query_start_loc = loc.data(),
                                                     .seq_lens = lens.data(),
                                                     .table_row = table_row.data(),
                                                     .key_start = start.data(),
                                                     .max_rows = max_rows}));
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
