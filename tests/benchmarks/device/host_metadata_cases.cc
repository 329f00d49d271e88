#include <cstdint>
#include <memory>
#include <vector>

#include "glog/logging.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/metadata/batch_split.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "tests/benchmarks/device/metadata_case.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16;
constexpr int kMaxBlocks = 1024;
constexpr int kChunkSize = 8192;

// Decodes of sequences of 2,000 and more tokens, and memory for what is made of them.
struct Decodes {
  explicit Decodes(int num_rows)
      : entries(static_cast<size_t>(num_rows) * kMaxBlocks),
        order(num_rows),
        encoder_lens(num_rows, 1500),
        ones(num_rows, 1),
        local(4 * num_rows + 1),
        cross_lens(num_rows),
        ragged(3 * num_rows + 2),
        ragged_slots(num_rows),
        builder(*BatchBuilder::Create({.max_rows = num_rows, .max_tokens = num_rows})) {
    for (size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<int32_t>(i) + 1;
    for (int r = 0; r < num_rows; ++r) {
      sequences.push_back({.table_row = r, .num_computed = 2000 + r, .query_len = 1});
    }
    batch = Build().batch;
  }

  BlockTableView Table() const {
    return {.entries = entries.data(),
            .row_stride = kMaxBlocks,
            .num_tables = static_cast<int>(sequences.size()),
            .max_blocks = kMaxBlocks,
            .block_size = kBlockSize};
  }

  BuiltBatch Build() {
    const int num_rows = static_cast<int>(sequences.size());
    absl::StatusOr<BuiltBatch> built =
        builder.Build({.sequences = sequences,
                       .table = Table(),
                       .padded = PaddedSize{.num_rows = num_rows, .num_tokens = num_rows}});
    CHECK(built.ok()) << built.status();
    return *built;
  }

  LocalVirtualBatchArgs LocalArgs() {
    const int rows = static_cast<int>(sequences.size());
    return {.batch = batch,
            .chunk_size = kChunkSize,
            .buffers = {.query_start_loc = local.data(),
                        .seq_lens = local.data() + rows + 1,
                        .table_row = local.data() + 2 * rows + 1,
                        .key_start = local.data() + 3 * rows + 1,
                        .max_rows = rows}};
  }

  RaggedGatherArgs RaggedArgs() {
    const int rows = static_cast<int>(sequences.size());
    return {.lens = ones.data(),
            .num_rows = rows,
            .num_tokens = rows,
            .max_len = 1,
            .query_start_loc = ragged.data(),
            .key_start_loc = ragged.data() + rows + 1,
            .positions = ragged.data() + 2 * rows + 2,
            .slot_mapping = ragged_slots.data()};
  }

  std::vector<BatchSequence> sequences;
  std::vector<int32_t> entries, order, encoder_lens, ones, local, cross_lens, ragged;
  std::vector<int64_t> ragged_slots;
  BatchBuilder builder;
  PagedBatch batch;
};

}  // namespace

std::vector<HostMetadataCase> HostMetadataCases(int num_rows) {
  const auto decodes = std::make_shared<Decodes>(num_rows);
  return {{"BatchBuilder::Build, decode", [decodes] { decodes->Build(); }},
          {"SplitBatch, decode",
           [decodes] {
             CHECK(SplitBatch(decodes->sequences, {}, absl::MakeSpan(decodes->order)).ok());
           }},
          {"BuildLocalVirtualBatch, decode",
           [decodes] { CHECK(BuildLocalVirtualBatch(decodes->LocalArgs()).ok()); }},
          {"BuildCrossBatch, decode",
           [decodes] {
             CHECK(BuildCrossBatch({.rows = decodes->batch,
                                    .encoder_lens = decodes->encoder_lens.data(),
                                    .table = decodes->Table(),
                                    .max_encoder_len = 1500,
                                    .seq_lens = decodes->cross_lens.data()})
                       .ok());
           }},
          {"BuildRaggedGather, 1 token a row",
           [decodes] { CHECK(BuildRaggedGather(decodes->RaggedArgs()).ok()); }}};
}

}  // namespace reprise
