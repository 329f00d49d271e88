// Compares the device forms of the builders of speculative batches with the host forms, array by
// array: for invalid batches, and in captured graphs that are replayed over large and small
// batches.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/speculation/accept_drafts.h"
#include "reprise/attention/speculation/advance_step.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/prefix_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/speculation/accept_cases.h"
#include "reprise/attention/testing/speculation/draft_cases.h"
#include "reprise/attention/testing/speculation/tree_cases.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 1;

class DraftBuildersGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class DraftBuildersSmallGpuTest : public DraftBuildersGpuTest {};

// Draws a shape with more rows than warps per CTA, and sometimes more rows than threads per CTA.
DraftShape LargeShape(Random& random) {
  DraftShape shape;
  shape.num_rows = random.Pick({16, 112, 256, 600});
  shape.num_tables = shape.num_rows + random.Int(0, 9);
  shape.block_size = random.Pick({1, 4, 16, 32});
  shape.max_blocks = 320 / shape.block_size;
  shape.max_new = random.Pick({1, 4, 9, 64});
  shape.num_tokens = shape.num_rows * shape.max_new + random.Int(0, 40);
  shape.max_context_len = random.Pick({300, 320, 1000});
  return shape;
}

// Leaves few live rows in every other batch.
template <typename Draw>
void KeepFewRows(Random& random, int batch, int num_rows, Draw slots_of) {
  if (batch % 2 == 0) return;
  const int num_live = random.Int(0, std::max(1, num_rows / 8));
  auto* slots = const_cast<int32_t*>(slots_of);
  for (int r = num_live; r < num_rows; ++r) slots[r] = -1;
}

template <typename Args, typename Carve, typename Launch, typename Draw, typename OnHost>
void CompareManyShapes(Carve carve, Launch launch, Draw draw, OnHost on_host, int num_shapes) {
  Random random(kSeed);
  for (int round = 0; round < num_shapes; ++round) {
    DraftShape shape = DrawDraftShape(random);
    if (random.OneIn(4)) shape.num_tokens += random.Int(0, 300);
    SCOPED_TRACE(testing::Message() << "round " << round << ", seed " << kSeed << ": " << shape);
    BuilderTwins<Args> twins([&](ArrayCarver& carver) { return carve(shape, carver); }, launch);
    for (double hostility : {0.0, 0.1}) {
      twins.Poison();
      draw(random, shape, hostility, twins.args());
      ASSERT_EQ(twins.Compare(on_host), "");
    }
  }
}

// Replays each of 4 captured graphs over 50 batches.
template <typename Args, typename Carve, typename Launch, typename Draw, typename OnHost,
          typename SlotsOf>
void ReplayManyBatches(Carve carve, Launch launch, Draw draw, OnHost on_host, SlotsOf slots_of) {
  Random random(kSeed + 1);
  for (int capture = 0; capture < 4; ++capture) {
    const DraftShape shape = LargeShape(random);
    SCOPED_TRACE(testing::Message() << "seed " << kSeed + 1 << ": " << shape);
    BuilderTwins<Args> twins([&](ArrayCarver& carver) { return carve(shape, carver); }, launch);
    for (int batch = 0; batch < 50; ++batch) {
      twins.Poison();
      draw(random, shape, batch % 5 == 4 ? 0.02 : 0, twins.args());
      KeepFewRows(random, batch, shape.num_rows, slots_of(twins.args()));
      ASSERT_EQ(twins.Compare(on_host), "") << "batch " << batch;
    }
  }
}

TEST_F(DraftBuildersGpuTest, GatheredChainsMatchTheHost) {
  CompareManyShapes<BatchGatherArgs>(CarveChainBatch, LaunchBatchGather, DrawChainBatch,
                                     BatchGatherOnHost, 150);
  ReplayManyBatches<BatchGatherArgs>(CarveChainBatch, LaunchBatchGather, DrawChainBatch,
                                     BatchGatherOnHost,
                                     [](const BatchGatherArgs& args) { return args.table_row; });
}

TEST_F(DraftBuildersGpuTest, BatchesOfRanksMatchTheHost) {
  Random random(kSeed);
  for (int round = 0; round < 100; ++round) {
    const DraftShape shape = round % 5 == 0 ? LargeShape(random) : DrawDraftShape(random);
    const int world = random.Int(2, 4);
    const KeyPositions ranks = {
        .rank = random.Int(0, world - 1), .world = world, .interleave = random.Pick({1, 2, 16})};
    const KeyPart part = random.Pick({KeyPart::kAll, KeyPart::kContext});
    BuilderTwins<BatchGatherArgs> twins(
        [&](ArrayCarver& carver) {
          BatchGatherArgs args = CarveChainBatch(shape, carver);
          args.key_positions = ranks;
          args.part = part;
          return args;
        },
        LaunchBatchGather);
    for (double hostility : {0.0, 0.1}) {
      twins.Poison();
      DrawChainBatch(random, shape, hostility, twins.args());
      ASSERT_EQ(twins.Compare(BatchGatherOnHost), "") << "round " << round << ": " << shape;
    }
  }
}

TEST_F(DraftBuildersGpuTest, TreeBatchesMatchTheHost) {
  CompareManyShapes<TreeBatchArgs>(CarveTreeBatch, LaunchTreeBatch, DrawTreeBatch, TreeBatchOnHost,
                                   150);
  ReplayManyBatches<TreeBatchArgs>(CarveTreeBatch, LaunchTreeBatch, DrawTreeBatch, TreeBatchOnHost,
                                   [](const TreeBatchArgs& args) { return args.slots; });
}

// Captures a graph per shape, and replays it over several batches. Some nodes have a parent that is
// not an earlier node.
void CompareTrees(int num_shapes) {
  Random random(kSeed + 6);
  for (int round = 0; round < num_shapes; ++round) {
    const TreeShape shape = DrawTreeShape(random);
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << shape);
    BuilderTwins<TreeTokensArgs> twins(
        [&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); }, LaunchTreeTokens);
    for (int replay = 0; replay < 4; ++replay) {
      twins.Poison();
      TreeTokensArgs& args = twins.args();
      DrawTreeTokens(random, shape, 0, args);
      for (int r = 0; replay % 2 == 1 && r < shape.num_rows; ++r) {
        const int32_t first = args.arrays.query_start_loc[r];
        const int32_t count = args.arrays.query_start_loc[r + 1] - first;
        if (count == 0 || !random.OneIn(3)) continue;
        const int node = random.Int(0, count - 1);
        const_cast<int32_t*>(args.parents.row(r, first))[node] = random.Pick({node, 64, -2});
      }
      ASSERT_EQ(twins.Compare(TreeTokensOnHost), "") << "replay " << replay;
    }
  }
}

TEST_F(DraftBuildersGpuTest, TreeTokensMatchTheHost) { CompareTrees(300); }

// Captures a graph per shape, and replays it over several steps.
void CompareDraftRows(int num_shapes, DraftRowsShape (*draw_shape)(Random&)) {
  Random random(kSeed + 7);
  for (int round = 0; round < num_shapes; ++round) {
    const DraftRowsShape shape = draw_shape(random);
    const bool is_hostile = round % 3 == 0;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << shape);
    BuilderTwins<DraftRowsArgs> twins(
        [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); }, LaunchDraftRows);
    for (int replay = 0; replay < 4; ++replay) {
      twins.Poison();
      DrawDraftRows(random, shape,
                    is_hostile ? DraftHostility{.blocks = 0.1, .parents = 0.05} : DraftHostility{},
                    twins.args());
      ASSERT_EQ(twins.Compare(DraftRowsOnHost), "") << "replay " << replay;
    }
  }
}

TEST_F(DraftBuildersGpuTest, DraftRowsMatchTheHost) { CompareDraftRows(250, DrawDraftRowsShape); }

TEST_F(DraftBuildersGpuTest, DraftTreeLevelsMatchTheHost) {
  CompareDraftRows(400, DrawDraftTreeShape);
}

// Captures a graph per shape, and replays it over several batches. With invalid rows, place_tokens
// is absent: rows that overlap would race for a cache slot.
void CompareAcceptances(int num_shapes) {
  Random random(kSeed + 2);
  for (int round = 0; round < num_shapes; ++round) {
    const bool is_hostile = round % 3 == 2;
    AcceptShape shape = DrawAcceptShape(random);
    if (is_hostile) shape.place_group = -1;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << shape);
    BuilderTwins<AcceptDraftsArgs> twins(
        [&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); }, LaunchAcceptDrafts);
    for (int replay = 0; replay < 4; ++replay) {
      twins.Poison();
      DrawAcceptDrafts(random, shape, is_hostile ? 0.1 : 0, twins.args());
      ASSERT_EQ(twins.Compare(AcceptDraftsOnHost), "") << "replay " << replay;
    }
  }
}

TEST_F(DraftBuildersGpuTest, AcceptedDraftsMatchTheHost) { CompareAcceptances(400); }

TEST_F(DraftBuildersGpuTest, AcceptanceMayWriteItsResultsToMappedHostMemory) {
  const AcceptShape shape = {.num_rows = 40, .num_slots = 44, .max_drafts = 8};
  Random random(kSeed);
  BuilderMemory<AcceptDraftsArgs> host(
      [&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
  DrawAcceptDrafts(random, shape, 0, host.args());
  void* mapped = nullptr;
  CheckCuda(cudaHostAlloc(&mapped, host.num_bytes(), cudaHostAllocMapped));
  __builtin_memcpy(mapped, host.base(), host.num_bytes());
  const AcceptDraftsArgs args = host.ArgsAt(static_cast<std::byte*>(mapped));
  ASSERT_EQ(LaunchAcceptDrafts(args, nullptr), absl::OkStatus());
  CheckCuda(cudaDeviceSynchronize());
  AcceptDraftsOnHost(host.args());
  EXPECT_EQ(host.FirstDifference(static_cast<std::byte*>(mapped)), "");
  CheckCuda(cudaFreeHost(mapped));
}

TEST_F(DraftBuildersGpuTest, AdvancedStepsMatchTheHost) {
  CompareManyShapes<AdvanceStepArgs>(CarveAdvanceStep, LaunchAdvanceStep, DrawAdvanceStep,
                                     AdvanceStepOnHost, 150);
  Random random(kSeed + 3);
  for (int num_rows : {1, 112, 256, 1024, 1025, 2500}) {
    DraftShape shape = LargeShape(random);
    shape.num_rows = num_rows;
    shape.num_tables = num_rows + 1;
    shape.num_tokens = num_rows + random.Int(0, 9);
    BuilderTwins<AdvanceStepArgs> twins(
        [&](ArrayCarver& carver) { return CarveAdvanceStep(shape, carver); }, LaunchAdvanceStep);
    for (int batch = 0; batch < 35; ++batch) {
      twins.Poison();
      DrawAdvanceStep(random, shape, batch % 5 == 4 ? 0.02 : 0, twins.args());
      auto* seq_lens = const_cast<int32_t*>(twins.args().seq_lens);
      if (batch % 2 == 1) std::fill(seq_lens + num_rows / 8, seq_lens + num_rows, 0);
      ASSERT_EQ(twins.Compare(AdvanceStepOnHost), "") << "batch " << batch << ": " << shape;
    }
  }
}

TEST_F(DraftBuildersGpuTest, PackedTablesOfAdvancedStepsMatchTheHost) {
  // Room for half of the blocks of the longest rows, so that some batches have rows without room.
  const auto carve = [](DraftShape shape, ArrayCarver& carver) {
    shape.packed_indices = shape.num_rows * shape.max_blocks / 2;
    return CarveAdvanceStep(shape, carver);
  };
  CompareManyShapes<AdvanceStepArgs>(carve, LaunchAdvanceStep, DrawAdvanceStep, AdvanceStepOnHost,
                                     150);
  Random random(kSeed + 5);
  for (int num_rows : {1, 112, 1024, 1025, 2500}) {
    DraftShape shape = LargeShape(random);
    shape.num_rows = num_rows;
    shape.num_tables = num_rows + 1;
    shape.num_tokens = num_rows + random.Int(0, 9);
    BuilderTwins<AdvanceStepArgs> twins([&](ArrayCarver& carver) { return carve(shape, carver); },
                                        LaunchAdvanceStep);
    for (int batch = 0; batch < 20; ++batch) {
      twins.Poison();
      DrawAdvanceStep(random, shape, batch % 5 == 4 ? 0.02 : 0, twins.args());
      auto* seq_lens = const_cast<int32_t*>(twins.args().seq_lens);
      if (batch % 2 == 1) std::fill(seq_lens + num_rows / 8, seq_lens + num_rows, 0);
      ASSERT_EQ(twins.Compare(AdvanceStepOnHost), "") << "batch " << batch << ": " << shape;
    }
  }
}

TEST_F(DraftBuildersGpuTest, CommonPrefixesMatchTheHost) {
  Random random(kSeed + 4);
  for (int round = 0; round < 120; ++round) {
    PrefixShape shape = DrawPrefixShape(random);
    if (round % 4 == 0) shape.num_rows = random.Pick({64, 256, 700});
    BuilderTwins<CommonPrefixArgs> twins(
        [&](ArrayCarver& carver) { return CarvePrefix(shape, carver); }, LaunchCommonPrefix);
    for (int batch = 0; batch < 5; ++batch) {
      twins.Poison();
      DrawPrefix(random, shape, batch == 4 ? 0.05 : 0, twins.args());
      ASSERT_EQ(twins.Compare(CommonPrefixOnHost), "") << "round " << round << ", batch " << batch;
    }
  }
}

// A small test for the sanitizer, which is slow: 8 shapes per builder.
TEST_F(DraftBuildersSmallGpuTest, BuildersMatchTheHostOnAFewInvalidBatches) {
  CompareManyShapes<BatchGatherArgs>(CarveChainBatch, LaunchBatchGather, DrawChainBatch,
                                     BatchGatherOnHost, 8);
  CompareManyShapes<TreeBatchArgs>(CarveTreeBatch, LaunchTreeBatch, DrawTreeBatch, TreeBatchOnHost,
                                   8);
  CompareDraftRows(8, DrawDraftRowsShape);
  CompareDraftRows(8, DrawDraftTreeShape);
  CompareAcceptances(8);
  CompareTrees(8);
  CompareManyShapes<AdvanceStepArgs>(CarveAdvanceStep, LaunchAdvanceStep, DrawAdvanceStep,
                                     AdvanceStepOnHost, 8);
  Random random(kSeed);
  for (int round = 0; round < 8; ++round) {
    const PrefixShape shape = DrawPrefixShape(random);
    BuilderTwins<CommonPrefixArgs> twins(
        [&](ArrayCarver& carver) { return CarvePrefix(shape, carver); }, LaunchCommonPrefix);
    DrawPrefix(random, shape, 0, twins.args());
    ASSERT_EQ(twins.Compare(CommonPrefixOnHost), "");
  }
}

}  // namespace
}  // namespace reprise
