#include "reprise/runner/step_metadata.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_check.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/step_memory.h"
#include "reprise/runner/testing/forwarding_driver.h"

namespace reprise {
namespace {

constexpr int kRows = 16;
constexpr int kTokens = 512;
constexpr int kSeqLen = 1024;
constexpr int kEncoderTokens = 96;

// A CPU driver that plans and computes tile schedules as a GPU driver does.
class PlanningDriver : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions& options) override {
    return PlanTileSchedule(options);
  }
  absl::Status BuildWork(const AttentionParams& layer, const PagedBatch& batch,
                         const TileSchedule& schedule) override {
    absl::Status status = TileScheduleOnHost(batch, WindowOf(layer), schedule).status();
    status.Update(CheckTileSchedule(schedule, batch, WindowOf(layer)));
    return status;
  }
  absl::Status BuildWork(const AttentionParams& layer, const RaggedBatch& batch,
                         const TileSchedule& schedule) override {
    return TileScheduleOnHost(batch, WindowOf(layer), schedule).status();
  }
};

class StepMetadataTest : public testing::Test {
 protected:
  void Make(TileScheduleMode mode, SharedPrefix shared_prefix = SharedPrefix::kIgnored) {
    const AttentionParams params = {
        .num_q_heads = 32, .num_kv_heads = 8, .head_dim_qk = 128, .head_dim_v = 128};
    AttentionParams window = params;
    window.window_left = 99;
    options_ = {.layers = {{.params = params},
                           {.params = window},
                           {.params = params, .chunk_size = 40},
                           {.params = params, .kind = AttentionKind::kEncoderDecoder}},
                .dtype = DType::kBFloat16,
                .max_rows = kRows,
                .max_tokens = kTokens,
                .max_seq_len = kSeqLen,
                .max_encoder_tokens = kEncoderTokens,
                .max_drafts = 4,
                .mode = mode,
                .decode_query_len = 5,  // used in deterministic mode
                .shared_prefix = shared_prefix};
    options_.classes = *CollectLayerClasses(options_.layers);
    driver_ = std::make_unique<PlanningDriver>(*MakeDeviceDriver(c10::kCPU, {}));
    auto metadata = StepMetadata::Create(options_, driver_.get());
    ASSERT_TRUE(metadata.ok()) << metadata.status();
    metadata_ = *std::move(metadata);
    auto memory = StepMemory::Allocate({.max_rows = kRows,
                                        .max_tokens = kTokens,
                                        .max_blocks = kSeqLen / 16,
                                        .num_groups = options_.classes.num_groups(),
                                        .vocab_size = 8},
                                       c10::kCPU);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  // Returns the batches of a step with `num_live` rows of `query_len` tokens, with arrays as refill
  // writes them for `key`.
  StepBatches Refilled(const GraphKey& key, int num_live, int query_len) {
    const StepArrays& arrays = memory_->arrays();
    for (int r = 0; r < key.padded_num_seqs; ++r) {
      const bool is_live = r < num_live;
      arrays.query_start_loc[r + 1] = std::min(r + 1, num_live) * query_len;
      arrays.seq_lens[r] = is_live ? query_len + (r * 389) % (kSeqLen - query_len) : 0;
      arrays.encoder_lens[r] = is_live ? 1 + (r * 31) % kEncoderTokens : 0;
      arrays.table_row[r] = is_live ? r : 0;
    }
    return metadata_->BatchesAt(key, arrays, memory_->slots());
  }

  absl::Status Build(const StepBatches& batches) const {
    const int num_layers = static_cast<int>(options_.layers.size());
    return metadata_->Build(batches, metadata_->ClassesOf(0, num_layers));
  }

  StepMetadataOptions options_;
  std::unique_ptr<PlanningDriver> driver_;
  std::unique_ptr<StepMetadata> metadata_;
  std::unique_ptr<StepMemory> memory_;
};

GraphKey DecodeKey(int num_rows) {
  return {.padded_num_seqs = num_rows, .padded_num_tokens = num_rows, .max_query_len = 1};
}

TEST_F(StepMetadataTest, StepsWithDraftsHaveTilesOfTheirSize) {
  Make(TileScheduleMode::kBalanced);
  for (const int padded : {1, 3, kRows}) {
    const GraphKey key = {.padded_num_seqs = padded,
                          .padded_num_tokens = padded * 5,
                          .max_query_len = 5,
                          .num_earlier_logits = padded * 4,
                          .num_drafts = 4};
    for (int live = 0; live <= padded; live += 1 + live / 3) {
      const StepBatches batches = Refilled(key, live, 5);
      const absl::Status built = Build(batches);
      ASSERT_TRUE(built.ok()) << built;
      for (const BatchSchedule& work : batches.work) EXPECT_EQ(work.schedule.main.max_query_len, 5);
    }
  }
}

TEST_F(StepMetadataTest, LayersShareTheirClasses) {
  Make(TileScheduleMode::kBalanced);
  EXPECT_EQ(metadata_->ClassesOf(0, 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(metadata_->ClassesOf(1, 3), (std::vector<int>{1, 2}));
  EXPECT_TRUE(metadata_->ClassesOf(2, 2).empty());
}

TEST_F(StepMetadataTest, DecodesHaveSeparateSchedulesForEveryClass) {
  Make(TileScheduleMode::kBalanced);
  const GraphKey prompts = {
      .padded_num_seqs = 4, .padded_num_tokens = kTokens, .max_query_len = 128};
  const StepBatches prefill = Refilled(prompts, 4, 128);
  ASSERT_EQ(prefill.work.size(), 4u);
  absl::Status built = Build(prefill);
  EXPECT_TRUE(built.ok()) << built;
  for (int padded : {1, 2, 8, kRows}) {
    for (int live = 0; live <= padded; live += 1 + live / 3) {
      SCOPED_TRACE(testing::Message() << live << " of " << padded << " rows");
      const StepBatches decode = Refilled(DecodeKey(padded), live, 1);
      built = Build(decode);
      ASSERT_TRUE(built.ok()) << built;
      for (int c = 0; c < 4; ++c) {
        EXPECT_EQ(decode.work[c].schedule.main.max_query_len, 1);
        // 4 q heads of one KV head, instead of a prompt's queries.
        EXPECT_LT(decode.work[c].schedule.main.tile_rows, prefill.work[c].schedule.main.tile_rows)
            << "class " << c;
        EXPECT_EQ(decode.work[c].schedule.main.tile_queries, 1);
      }
    }
  }
  // A schedule does not depend on the previous step.
  built = Build(Refilled(prompts, 3, 128));
  EXPECT_TRUE(built.ok()) << built;
}

int NumSharedItems(const TileSchedule& schedule) {
  return static_cast<int>(
      std::count_if(schedule.main.items, schedule.main.items + schedule.main.counts[0],
                    [](const WorkItem& item) { return item.row == kSharedRow; }));
}

TEST_F(StepMetadataTest, CascadeStepsReadAPrefixOnceIfAllKeysAreRead) {
  Make(TileScheduleMode::kBalanced, SharedPrefix::kTaken);
  GraphKey key = DecodeKey(kRows);
  for (const int prefix : {0, 300, 48, 0, 130}) {
    SCOPED_TRACE(testing::Message() << "prefix " << prefix);
    for (const bool cascade : {true, false}) {
      key.cascade = cascade;
      const StepBatches batches = Refilled(key, kRows - 1, 1);
      *memory_->arrays().common_prefix_len = prefix;
      for (int r = 0; r < kRows - 1; ++r) memory_->arrays().seq_lens[r] = 301 + 40 * r;
      const absl::Status built = Build(batches);
      ASSERT_TRUE(built.ok()) << built;
      // Classes: without a window; with a window, with chunks, over the encoder's keys.
      EXPECT_EQ(batches.of_class[0].common_prefix_len,
                cascade ? memory_->arrays().common_prefix_len : nullptr);
      EXPECT_EQ(NumSharedItems(batches.work[0].schedule) > 0, cascade && prefix >= kWorkStepKeys);
      for (int c = 1; c < 4; ++c) {
        EXPECT_FALSE(metadata_->TakesPrefix(c));
        EXPECT_EQ(batches.of_class[c].common_prefix_len, nullptr);
        EXPECT_EQ(NumSharedItems(batches.work[c].schedule), 0);
      }
    }
  }
}

TEST_F(StepMetadataTest, InvariantModeSplitsAllStepsEqually) {
  Make(TileScheduleMode::kDeterministic);
  const StepBatches decode = Refilled(DecodeKey(kRows), kRows, 1);
  const absl::Status built = Build(decode);
  EXPECT_TRUE(built.ok()) << built;
  const StepBatches prefill =
      Refilled({.padded_num_seqs = 4, .padded_num_tokens = kTokens, .max_query_len = 128}, 4, 128);
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(decode.work[c].schedule.main.tile_rows, prefill.work[c].schedule.main.tile_rows);
    EXPECT_EQ(decode.work[c].schedule.main.items, prefill.work[c].schedule.main.items);
  }
}

TEST_F(StepMetadataTest, InvariantModeSplitsDraftsLikeDecodes) {
  Make(TileScheduleMode::kDeterministic);
  const StepBatches drafts = Refilled(
      {.padded_num_seqs = 4, .padded_num_tokens = 20, .max_query_len = 5, .num_drafts = 4}, 4, 5);
  const absl::Status built = Build(drafts);
  ASSERT_TRUE(built.ok()) << built;
  for (int c = 0; c < 4; ++c) {
    const KernelSchedule& schedule = drafts.work[c].schedule.short_rows;
    EXPECT_GE(schedule.counts[0], 20) << "class " << c;
    for (int i = 0; i < schedule.counts[0]; ++i) {
      EXPECT_EQ(schedule.items[i].query_end - schedule.items[i].query_begin, 1);
    }
  }
}

}  // namespace
}  // namespace reprise
