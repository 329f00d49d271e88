// Tests that the host form and the device form of each builder reject invalid arguments with the
// same message. The device form (builds with CUDA only) does so before any CUDA call, so no GPU is
// needed.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/attention/speculation/accept_drafts.h"
#include "reprise/attention/speculation/advance_step.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/move_kv.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/speculation/accept_cases.h"
#include "reprise/attention/testing/speculation/draft_cases.h"
#include "reprise/attention/testing/speculation/tree_cases.h"
#include "reprise/base/testing/builder_memory.h"

#ifdef REPRISE_WITH_CUDA
#define REPRISE_LAUNCH(launch) launch
#else
#define REPRISE_LAUNCH(launch) nullptr
#endif

namespace reprise {
namespace {

constexpr DraftShape kShape = {.num_rows = 2,
                               .num_tables = 2,
                               .block_size = 4,
                               .max_blocks = 3,
                               .max_new = 5,
                               .num_tokens = 10,
                               .max_context_len = 12};

// The check, the host form and the launch of a builder. The launch is null in builds without CUDA.
template <typename Args>
struct Forms {
  absl::Status (*check)(const Args&);
  std::function<absl::Status(const Args&)> build;
  absl::Status (*launch)(const Args&, CUstream_st*);
};

template <typename Args>
struct Refusal {
  std::string message;
  std::function<void(Args&)> spoil;
};

template <typename Args>
void ExpectRefused(const Forms<Args>& forms, const Args& good,
                   const std::vector<Refusal<Args>>& refusals) {
  ASSERT_EQ(forms.check(good), absl::OkStatus());
  for (const Refusal<Args>& refusal : refusals) {
    Args args = good;
    refusal.spoil(args);
    const absl::Status expected = absl::InvalidArgumentError(refusal.message);
    EXPECT_EQ(forms.check(args), expected);
    EXPECT_EQ(forms.build(args), expected);
    if (forms.launch == nullptr) continue;
    EXPECT_EQ(forms.launch(args, nullptr), expected);
  }
}

// Returns invalid block tables and their messages. `table_of` returns the block table of arguments.
template <typename Args, typename TableOf>
std::vector<Refusal<Args>> TableRefusals(TableOf table_of) {
  return {
      {"table.block_size: expected at least 1, got 0",
       [=](Args& args) { table_of(args).block_size = 0; }},
      {"table.num_tables: expected at least 0, got -1",
       [=](Args& args) { table_of(args).num_tables = -1; }},
      {"table.max_blocks: expected at least 0, got -1",
       [=](Args& args) { table_of(args).max_blocks = -1; }},
      {"table.num_blocks: expected at least 0, got -1",
       [=](Args& args) { table_of(args).num_blocks = -1; }},
      // With a stride of 0, all rows of the table would be the same row.
      {"table.row_stride: expected at least 3, got 0",
       [=](Args& args) { table_of(args).row_stride = 0; }},
      {"table.row_stride: expected at least 3, got -3",
       [=](Args& args) { table_of(args).row_stride = -3; }},
      {"table.entries: expected an array, got none",
       [=](Args& args) { table_of(args).entries = nullptr; }},
  };
}

template <typename Args>
std::vector<Refusal<Args>> ArrayRefusals() {
  return {
      {"arrays.query_start_loc: expected an array, got none",
       [](Args& args) { args.arrays.query_start_loc = nullptr; }},
      {"arrays.seq_lens: expected an array, got none",
       [](Args& args) { args.arrays.seq_lens = nullptr; }},
      {"arrays.table_row: expected an array, got none",
       [](Args& args) { args.arrays.table_row = nullptr; }},
      {"arrays.positions: expected an array, got none",
       [](Args& args) { args.arrays.positions = nullptr; }},
      {"arrays.slot_mapping: expected an array, got none",
       [](Args& args) { args.arrays.slot_mapping = nullptr; }},
  };
}

BlockTableView& TableOf(BatchGatherArgs& args) { return args.table; }
BlockTableView& TableOf(CrossBatchArgs& args) { return args.table; }
BlockTableView& TableOf(TreeBatchArgs& args) { return args.table; }
BlockTableView& TableOf(DraftRowsArgs& args) { return args.rows.table; }
BlockTableView& TableOf(AdvanceStepArgs& args) { return args.table; }

template <typename Args>
void ExpectTableRefused(const Forms<Args>& forms, const Args& good) {
  ExpectRefused(forms, good,
                TableRefusals<Args>([](Args& args) -> BlockTableView& { return TableOf(args); }));
}

TEST(RefusedArgsTest, GatheredChains) {
  BuilderMemory<BatchGatherArgs> memory(
      [](ArrayCarver& carver) { return CarveChainBatch(kShape, carver); });
  const Forms<BatchGatherArgs> forms = {
      CheckBatchGather, [](const auto& args) { return BuildBatchGather(args).status(); },
      REPRISE_LAUNCH(LaunchBatchGather)};
  using Args = BatchGatherArgs;
  ExpectTableRefused(forms, memory.args());
  ExpectRefused(forms, memory.args(), ArrayRefusals<Args>());
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"num_verified: expected at least 0, got -1", [](Args& args) { args.num_verified = -1; }},
       {"max_query_len: expected at least 6, got 5", [](Args& args) { args.num_verified = 6; }},
       {"key_positions: expected 0 <= rank < world and interleave >= 1, got rank 2, world 2, "
        "interleave 1",
        [](Args& args) { args.key_positions = {.rank = 2, .world = 2, .interleave = 1}; }},
       {"table_row: expected an array, got none", [](Args& args) { args.table_row = nullptr; }},
       {"query_lens: expected an array, got none", [](Args& args) { args.query_lens = nullptr; }},
       {"seq_lens: expected an array, got none", [](Args& args) { args.table_seq_lens = nullptr; }},
       {"table_seq_lens must not be given together with seq_lens",
        [](Args& args) { args.seq_lens = args.table_seq_lens; }},
       {"token_stride: expected at least 4, got 0", [](Args& args) { args.token_stride = 0; }},
       {"token_stride: expected at least 5, got 4", [](Args& args) {
          args.token_stride = 4;
          args.first_token = nullptr;
        }}});
}

// Arrays for two rows, with a table of 2 * 3 blocks and block_size 4.
struct Arrays {
  BlockTableView Table() const {
    return {.entries = ints,
            .row_stride = 3,
            .num_tables = 2,
            .max_blocks = 3,
            .block_size = 4,
            .num_blocks = 10};
  }
  PagedBatch Rows() const {
    return {.query_start_loc = ints,
            .seq_lens = ints,
            .table_row = ints,
            .key_start = ints,
            .num_rows = 2,
            .num_tokens = 2,
            .max_query_len = 1};
  }

  int32_t ints[6] = {};  // inputs
  uint8_t mask = 0;
  int32_t out[6] = {};
  int64_t slots[2] = {};
};

TEST(RefusedArgsTest, GatheredBatches) {
  Arrays arrays;
  using Args = BatchGatherArgs;
  const Args good = {.table_row = arrays.ints,
                     .query_lens = arrays.ints,
                     .seq_lens = arrays.ints,
                     .key_start = arrays.ints,
                     .table = arrays.Table(),
                     .num_rows = 2,
                     .num_tokens = 2,
                     .arrays = {.positions = arrays.out,
                                .slot_mapping = arrays.slots,
                                .query_start_loc = arrays.out,
                                .seq_lens = arrays.out,
                                .table_row = arrays.out,
                                .key_start = arrays.out}};
  const Forms<Args> forms = {CheckBatchGather,
                             [](const Args& args) { return BuildBatchGather(args).status(); },
                             REPRISE_LAUNCH(LaunchBatchGather)};
  ExpectTableRefused(forms, good);
  ExpectRefused(forms, good, ArrayRefusals<Args>());
  ExpectRefused<Args>(
      forms, good,
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"max_query_len: expected at least 0, got -1", [](Args& args) { args.max_query_len = -1; }},
       {"max_seq_len: expected at least 0, got -1", [](Args& args) { args.max_seq_len = -1; }},
       {"write_window: expected at least 0, got -1", [](Args& args) { args.write_window = -1; }},
       {"table_row: expected an array, got none", [](Args& args) { args.table_row = nullptr; }},
       {"query_lens: expected an array, got none", [](Args& args) { args.query_lens = nullptr; }},
       {"seq_lens: expected an array, got none", [](Args& args) { args.seq_lens = nullptr; }},
       {"key_start must not be given with several ranks or KeyPart::kContext",
        [](Args& args) { args.key_positions.world = 2; }},
       {"key_start must not be given with several ranks or KeyPart::kContext",
        [](Args& args) { args.part = KeyPart::kContext; }},
       {"arrays.key_start: expected an array, got none",
        [](Args& args) { args.arrays.key_start = nullptr; }}});
}

TEST(RefusedArgsTest, CrossBatches) {
  Arrays arrays;
  using Args = CrossBatchArgs;
  const Args good = {.rows = arrays.Rows(),
                     .encoder_lens = arrays.ints,
                     .table = arrays.Table(),
                     .max_encoder_len = 12,
                     .seq_lens = arrays.out};
  const Forms<Args> forms = {CheckCrossBatch,
                             [](const Args& args) { return BuildCrossBatch(args).status(); },
                             REPRISE_LAUNCH(LaunchCrossBatch)};
  ExpectTableRefused(forms, good);
  ExpectRefused<Args>(
      forms, good,
      {{"max_encoder_len: expected 0 to 12, got 13", [](Args& args) { args.max_encoder_len = 13; }},
       {"max_encoder_len: expected 0 to 12, got -1", [](Args& args) { args.max_encoder_len = -1; }},
       {"rows.num_rows: expected at least 0, got -1", [](Args& args) { args.rows.num_rows = -1; }},
       {"rows.seq_lens: expected an array, got none",
        [](Args& args) { args.rows.seq_lens = nullptr; }},
       {"seq_lens: expected an array, got none", [](Args& args) { args.seq_lens = nullptr; }},
       {"encoder_lens: expected an array, got none",
        [](Args& args) { args.encoder_lens = nullptr; }}});
}

TEST(RefusedArgsTest, VirtualRowsOfChunks) {
  Arrays arrays;
  using Args = LocalVirtualBatchArgs;
  const Args good = {.batch = arrays.Rows(),
                     .chunk_size = 4,
                     .buffers = {.query_start_loc = arrays.out,
                                 .seq_lens = arrays.out,
                                 .table_row = arrays.out,
                                 .key_start = arrays.out,
                                 .max_rows = 2}};
  const Forms<Args> forms = {CheckLocalVirtualBatch,
                             [](const Args& args) { return BuildLocalVirtualBatch(args).status(); },
                             REPRISE_LAUNCH(LaunchLocalVirtualBatch)};
  ExpectRefused<Args>(
      forms, good,
      {{"chunk_size: expected at least 1, got 0", [](Args& args) { args.chunk_size = 0; }},
       {"batch.num_rows: expected at least 0, got -1",
        [](Args& args) { args.batch.num_rows = -1; }},
       {"batch.num_tokens: expected at least 0, got -1",
        [](Args& args) { args.batch.num_tokens = -1; }},
       {"batch.causal: expected true, got false", [](Args& args) { args.batch.causal = false; }},
       {"batch.tail_len must not be given",
        [](Args& args) { args.batch.tail_len = args.batch.seq_lens; }},
       {"batch.custom_mask must not be given",
        [&](Args& args) { args.batch.custom_mask = &arrays.mask; }},
       {"batch.key_positions.world: expected 1, got 2",
        [](Args& args) { args.batch.key_positions.world = 2; }},
       {"buffers.max_rows: expected at least 2, got 1",
        [](Args& args) { args.buffers.max_rows = 1; }},
       {"batch.query_start_loc: expected an array, got none",
        [](Args& args) { args.batch.query_start_loc = nullptr; }},
       {"batch.seq_lens: expected an array, got none",
        [](Args& args) { args.batch.seq_lens = nullptr; }},
       {"buffers.query_start_loc: expected an array, got none",
        [](Args& args) { args.buffers.query_start_loc = nullptr; }},
       {"buffers.seq_lens: expected an array, got none",
        [](Args& args) { args.buffers.seq_lens = nullptr; }},
       {"buffers.table_row: expected an array, got none",
        [](Args& args) { args.buffers.table_row = nullptr; }},
       {"buffers.key_start: expected an array, got none",
        [](Args& args) { args.buffers.key_start = nullptr; }}});
}

TEST(RefusedArgsTest, RaggedBatches) {
  Arrays arrays;
  using Args = RaggedGatherArgs;
  const Args good = {.lens = arrays.ints,
                     .num_rows = 2,
                     .num_tokens = 2,
                     .max_len = 1,
                     .query_start_loc = arrays.out,
                     .key_start_loc = arrays.out,
                     .positions = arrays.out};
  const Forms<Args> forms = {CheckRaggedGather,
                             [](const Args& args) { return BuildRaggedGather(args).status(); },
                             REPRISE_LAUNCH(LaunchRaggedGather)};
  ExpectRefused<Args>(
      forms, good,
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"max_len: expected at least 0, got -1", [](Args& args) { args.max_len = -1; }},
       {"lens: expected an array, got none", [](Args& args) { args.lens = nullptr; }},
       {"positions: expected an array, got none", [](Args& args) { args.positions = nullptr; }},
       {"query_start_loc: expected an array, got none",
        [](Args& args) { args.query_start_loc = nullptr; }},
       {"key_start_loc: expected an array, got none",
        [](Args& args) { args.key_start_loc = nullptr; }}});
}

TEST(RefusedArgsTest, TreeBatches) {
  BuilderMemory<TreeBatchArgs> memory(
      [](ArrayCarver& carver) { return CarveTreeBatch(kShape, carver); });
  const Forms<TreeBatchArgs> forms = {
      CheckTreeBatch, [](const auto& args) { return BuildTreeBatch(args).status(); },
      REPRISE_LAUNCH(LaunchTreeBatch)};
  using Args = TreeBatchArgs;
  ExpectTableRefused(forms, memory.args());
  ExpectRefused(forms, memory.args(), ArrayRefusals<Args>());
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"max_nodes: expected 1 to 64, got 0", [](Args& args) { args.max_nodes = 0; }},
       {"max_nodes: expected 1 to 64, got 65", [](Args& args) { args.max_nodes = 65; }},
       {"max_context_len: expected at least 1, got 0",
        [](Args& args) { args.max_context_len = 0; }},
       {"slots: expected an array, got none", [](Args& args) { args.slots = nullptr; }},
       {"num_nodes: expected an array, got none", [](Args& args) { args.num_nodes = nullptr; }},
       {"parents: expected an array, got none", [](Args& args) { args.parents = nullptr; }},
       {"seq_len: expected an array, got none", [](Args& args) { args.seq_len = nullptr; }},
       {"arrays.tail_len: expected an array, got none",
        [](Args& args) { args.arrays.tail_len = nullptr; }},
       {"arrays.tail_mask: expected an array, got none",
        [](Args& args) { args.arrays.tail_mask = nullptr; }},
       {"parent_stride: expected at least 5, got 4", [](Args& args) { args.parent_stride = 4; }},
       {"token_stride: expected at least 4, got 3", [](Args& args) { args.token_stride = 3; }}});
  Args one_tree_for_all = memory.args();
  one_tree_for_all.parent_stride = 0;
  EXPECT_EQ(CheckTreeBatch(one_tree_for_all), absl::OkStatus());
}

TEST(RefusedArgsTest, DraftRows) {
  const DraftRowsShape shape = {.num_rows = 2,
                                .num_slots = 2,
                                .max_drafts = 4,
                                .max_blocks = 3,
                                .pass = 1,
                                .level_starts = {0, 1, 3, 5}};
  BuilderMemory<DraftRowsArgs> memory(
      [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); });
  const Forms<DraftRowsArgs> forms = {CheckDraftRows, CheckDraftRows,
                                      REPRISE_LAUNCH(LaunchDraftRows)};
  using Args = DraftRowsArgs;
  ExpectTableRefused(forms, memory.args());
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"rows.num_groups: expected 1 to 8, got 0", [](Args& args) { args.rows.num_groups = 0; }},
       {"rows.num_rows: expected at least 0, got -1", [](Args& args) { args.rows.num_rows = -1; }},
       {"rows.num_tokens: expected at least 0, got -1",
        [](Args& args) { args.rows.num_tokens = -1; }},
       {"step.num_tokens: expected at least 0, got -1",
        [](Args& args) { args.step.num_tokens = -1; }},
       {"max_drafts: expected 1 to 63, got 0", [](Args& args) { args.max_drafts = 0; }},
       {"max_drafts: expected 1 to 63, got 64", [](Args& args) { args.max_drafts = 64; }},
       {"pass: expected 0 to 2, got 3", [](Args& args) { args.pass = 3; }},
       {"level.num_levels: expected 1 to 4, got 5", [](Args& args) { args.level.num_levels = 5; }},
       {"level.first: expected 1 to 4, got 0", [](Args& args) { args.level.first = 0; }},
       {"level.first_before: expected 0 to 0, got 1",
        [](Args& args) { args.level.first_before = 1; }},
       {"level.end: expected 2 to 5, got 6", [](Args& args) { args.level.end = 6; }},
       {"num_logits: expected at least 4, got 3", [](Args& args) { args.num_logits = 3; }},
       {"step.parents: expected an array, got none", [](Args& args) { args.step.parents = {}; }},
       {"parents.row_stride: expected at least 5, got 4",
        [](Args& args) { args.step.parents.row_stride = 4; }},
       {"tail_len: expected an array, got none", [](Args& args) { args.tail_len = nullptr; }},
       {"tail_mask: expected an array, got none", [](Args& args) { args.tail_mask = nullptr; }},
       {"chosen: expected an array, got none", [](Args& args) { args.chosen = nullptr; }},
       {"arrays.positions: expected an array, got none",
        [](Args& args) { args.rows.arrays.positions = nullptr; }},
       {"drafted_len: expected an array, got none", [](Args& args) { args.drafted_len = nullptr; }},
       {"history: expected an array, got none", [](Args& args) { args.history = {}; }},
       {"step.token_ids: expected an array, got none",
        [](Args& args) { args.step.token_ids = nullptr; }},
       {"step.query_start_loc: expected an array, got none",
        [](Args& args) { args.step.query_start_loc = nullptr; }},
       {"step.context_lens: expected an array, got none",
        [](Args& args) { args.step.context_lens = nullptr; }},
       {"step.slot_of_row: expected an array, got none",
        [](Args& args) { args.step.slot_of_row = nullptr; }},
       {"step.num_proposed: expected an array, got none",
        [](Args& args) { args.step.num_proposed = nullptr; }},
       {"sample_slot: expected an array, got none", [](Args& args) { args.sample_slot = nullptr; }},
       {"sample_offset: expected an array, got none",
        [](Args& args) { args.sample_offset = nullptr; }}});
}

TEST(RefusedArgsTest, TreeTokens) {
  const TreeShape shape = {
      .num_rows = 2, .num_tables = 2, .num_groups = 2, .num_dims = 3, .parent_stride = 5};
  BuilderMemory<TreeTokensArgs> memory(
      [&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); });
  const Forms<TreeTokensArgs> forms = {CheckTreeTokens, CheckTreeTokens,
                                       REPRISE_LAUNCH(LaunchTreeTokens)};
  using Args = TreeTokensArgs;
  ExpectRefused(forms, memory.args(), ArrayRefusals<Args>());
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"max_nodes: expected 1 to 64, got 0", [](Args& args) { args.max_nodes = 0; }},
       {"max_nodes: expected 1 to 64, got 65", [](Args& args) { args.max_nodes = 65; }},
       {"num_groups: expected 1 to 8, got 9", [](Args& args) { args.num_groups = 9; }},
       {"parents: expected an array, got none", [](Args& args) { args.parents = {}; }},
       {"parents.row_stride: expected at least 5, got 4",
        [](Args& args) { args.parents.row_stride = 4; }},
       {"arrays.tail_len: expected an array, got none",
        [](Args& args) { args.arrays.tail_len = nullptr; }},
       {"arrays.tail_mask: expected an array, got none",
        [](Args& args) { args.arrays.tail_mask = nullptr; }},
       {"first_verified: expected an array, got none",
        [](Args& args) { args.first_verified = nullptr; }},
       {"num_logits: expected at least 2, got 1", [](Args& args) { args.num_logits = 1; }},
       {"model_positions.stride: expected at least 10, got 9",
        [](Args& args) { args.model_positions.stride = 9; }},
       {"model_positions.delta: expected an array, got none",
        [](Args& args) { args.model_positions.delta = nullptr; }}});
}

TEST(RefusedArgsTest, Acceptance) {
  const AcceptShape shape = {.num_rows = 2,
                             .num_slots = 2,
                             .num_groups = 2,
                             .has_trees = true,
                             .parent_stride = 5,
                             .place_group = 0,
                             .num_outputs = 1};
  BuilderMemory<AcceptDraftsArgs> memory(
      [&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
  const Forms<AcceptDraftsArgs> forms = {CheckAcceptDrafts, AcceptDrafts,
                                         REPRISE_LAUNCH(LaunchAcceptDrafts)};
  using Args = AcceptDraftsArgs;
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 0, got -1", [](Args& args) { args.num_tokens = -1; }},
       {"max_drafts: expected 0 to 63, got -1", [](Args& args) { args.max_drafts = -1; }},
       {"max_drafts: expected 0 to 63, got 64", [](Args& args) { args.max_drafts = 64; }},
       {"num_groups: expected 1 to 8, got 0", [](Args& args) { args.num_groups = 0; }},
       {"num_logits: expected at least 2, got 1", [](Args& args) { args.num_logits = 1; }},
       {"num_logits: expected at least 10, got 9",
        [](Args& args) { args.first_verified = nullptr, args.num_logits = 9; }},
       {"output_stride: expected at least 0, got -1", [](Args& args) { args.output_stride = -1; }},
       {"group_stride: expected at least 10, got 9", [](Args& args) { args.group_stride = 9; }},
       {"place_tokens.group: expected 0 to 1, got 2",
        [](Args& args) { args.place_tokens.group = 2; }},
       {"parents.row_stride: expected at least -1, got -2",
        [](Args& args) { args.parents.row_stride = -2; }},
       {"parents.row_stride: expected at least 5, got 4",
        [](Args& args) { args.parents.row_stride = 4; }},
       {"new_tokens_stride: expected at least 5, got 4",
        [](Args& args) { args.new_tokens_stride = 4; }},
       {"output: expected an array, got none", [](Args& args) { args.output = nullptr; }},
       {"slot_mapping: expected an array, got none",
        [](Args& args) { args.slot_mapping = nullptr; }},
       {"slot_mapping: expected an array, got none",
        [](Args& args) { args.slot_mapping = nullptr, args.parents = {}; }},
       {"move_from: expected an array, got none", [](Args& args) { args.move_from = nullptr; }},
       {"move_to: expected an array, got none", [](Args& args) { args.move_to = nullptr; }},
       {"query_start_loc: expected an array, got none",
        [](Args& args) { args.query_start_loc = nullptr; }},
       {"context_lens: expected an array, got none",
        [](Args& args) { args.context_lens = nullptr; }},
       {"token_ids: expected an array, got none", [](Args& args) { args.token_ids = nullptr; }},
       {"chosen: expected an array, got none", [](Args& args) { args.chosen = nullptr; }},
       {"slot_of_row: expected an array, got none", [](Args& args) { args.slot_of_row = nullptr; }},
       {"tokens: expected an array, got none", [](Args& args) { args.tokens = nullptr; }},
       {"num_new: expected an array, got none", [](Args& args) { args.num_new = nullptr; }},
       {"new_tokens: expected an array, got none", [](Args& args) { args.new_tokens = nullptr; }}});
}

TEST(RefusedArgsTest, AdvancedSteps) {
  BuilderMemory<AdvanceStepArgs> memory(
      [](ArrayCarver& carver) { return CarveAdvanceStep(kShape, carver); });
  const Forms<AdvanceStepArgs> forms = {CheckAdvanceStep,
                                        [](const auto& args) { return AdvanceStep(args).status(); },
                                        REPRISE_LAUNCH(LaunchAdvanceStep)};
  using Args = AdvanceStepArgs;
  ExpectTableRefused(forms, memory.args());
  ExpectRefused(forms, memory.args(), ArrayRefusals<Args>());
  ExpectRefused<Args>(
      forms, memory.args(),
      {{"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"num_tokens: expected at least 2, got 1", [](Args& args) { args.num_tokens = 1; }},
       {"max_context_len: expected at least 1, got 0",
        [](Args& args) { args.max_context_len = 0; }},
       {"seq_lens: expected an array, got none", [](Args& args) { args.seq_lens = nullptr; }},
       {"table_row: expected an array, got none", [](Args& args) { args.table_row = nullptr; }},
       {"sampled: expected an array, got none", [](Args& args) { args.sampled = nullptr; }}});
  DraftShape with_packed = kShape;
  with_packed.packed_indices = 9;
  BuilderMemory<AdvanceStepArgs> packed(
      [&](ArrayCarver& carver) { return CarveAdvanceStep(with_packed, carver); });
  ExpectRefused<Args>(
      forms, packed.args(),
      {{"packed.num_rows: expected 2, got 3", [](Args& args) { args.packed.num_rows = 3; }},
       {"packed.block_size: expected 4, got 8", [](Args& args) { args.packed.block_size = 8; }},
       {"packed.max_indices: expected at least 0, got -1",
        [](Args& args) { args.packed.max_indices = -1; }},
       {"packed.block_indices: expected an array, got none",
        [](Args& args) { args.packed.block_indices = nullptr; }},
       {"packed.last_block_len: expected an array, got none",
        [](Args& args) { args.packed.last_block_len = nullptr; }}});
}

TEST(RefusedArgsTest, Moves) {
  std::vector<float> keys(64), values(64);
  const std::vector<int64_t> slots(6, -1);
  const KvView view = {.block_stride = 16,
                       .token_stride = 4,
                       .head_stride = 4,
                       .dim_chunk = 4,
                       .dim_chunk_stride = 4};
  MoveKvArgs good;
  good.k = good.v = {.view = view, .head_dim = 4};
  good.element_bytes = 4;
  good.num_heads = 1;
  good.block_size = 4;
  good.num_blocks = 4;
  good.num_layers = 1;
  good.k_data[0] = keys.data();
  good.v_data[0] = values.data();
  good.move_from = good.move_to = slots.data();
  good.row_stride = 3;
  good.num_rows = 2;
  good.max_moves = 3;
  const Forms<MoveKvArgs> forms = {CheckMoveKv, MoveKv, REPRISE_LAUNCH(LaunchMoveKv)};
  using Args = MoveKvArgs;
  ExpectRefused<Args>(
      forms, good,
      {{"num_layers: expected 1 to 160, got 0", [](Args& args) { args.num_layers = 0; }},
       {"num_layers: expected 1 to 160, got 161", [](Args& args) { args.num_layers = 161; }},
       {"num_heads: expected at least 0, got -1", [](Args& args) { args.num_heads = -1; }},
       {"block_size: expected at least 1, got 0", [](Args& args) { args.block_size = 0; }},
       {"num_blocks: expected at least 0, got -1", [](Args& args) { args.num_blocks = -1; }},
       {"num_rows: expected at least 0, got -1", [](Args& args) { args.num_rows = -1; }},
       {"max_moves: expected at least 0, got -1", [](Args& args) { args.max_moves = -1; }},
       {"element_bytes: expected 1, 2, 4 or 8, got 0", [](Args& args) { args.element_bytes = 0; }},
       {"element_bytes: expected 1, 2, 4 or 8, got 3", [](Args& args) { args.element_bytes = 3; }},
       {"k.head_dim: expected at least 1, got 0", [](Args& args) { args.k.head_dim = 0; }},
       {"v.view.dim_chunk: expected at least 1, got 0",
        [](Args& args) { args.v.view.dim_chunk = 0; }},
       {"move_from: expected an array, got none", [](Args& args) { args.move_from = nullptr; }},
       {"move_to: expected an array, got none", [](Args& args) { args.move_to = nullptr; }},
       {"row_stride: expected at least 3, got 2", [](Args& args) { args.row_stride = 2; }},
       {"k_data: expected an array, got none", [](Args& args) { args.k_data[0] = nullptr; }},
       {"v_data: expected an array, got none", [](Args& args) { args.v_data[0] = nullptr; }}});
  // In an MLA cache V is part of K, and the fields of V are not used.
  MoveKvArgs latent = good;
  latent.v_within_k = true;
  latent.v = {};
  latent.v_data[0] = nullptr;
  EXPECT_EQ(CheckMoveKv(latent), absl::OkStatus());
#ifdef REPRISE_WITH_CUDA
  MoveKvArgs nothing = good;
  nothing.max_moves = 0;
  EXPECT_EQ(LaunchMoveKv(nothing, nullptr), absl::OkStatus()) << "no launch";
#endif
}

TEST(RefusedArgsTest, EmptyBatchesNeedNoArraysOfRowsOrTokens) {
  int32_t query_start_loc[1] = {-1};
  const BlockTableView no_table = {.block_size = 4};
  const BatchArrays arrays = {.query_start_loc = query_start_loc};
  EXPECT_EQ(BuildBatchGather({.table = no_table, .arrays = arrays}).status(), absl::OkStatus());
  EXPECT_EQ(query_start_loc[0], 0);
  query_start_loc[0] = -1;
  EXPECT_EQ(AdvanceStep({.table = no_table, .max_context_len = 1, .arrays = arrays}).status(),
            absl::OkStatus());
  EXPECT_EQ(query_start_loc[0], 0);
}

TEST(RefusedArgsTest, HostFormsRequireRowFaults) {
  BuilderMemory<BatchGatherArgs> chain(
      [](ArrayCarver& carver) { return CarveChainBatch(kShape, carver); });
  chain.args().arrays.row_faults = nullptr;
  EXPECT_EQ(CheckBatchGather(chain.args()), absl::OkStatus());
  EXPECT_EQ(BuildBatchGather(chain.args()).status(),
            absl::InvalidArgumentError("row_faults: expected an array, got none"));
}

}  // namespace
}  // namespace reprise
