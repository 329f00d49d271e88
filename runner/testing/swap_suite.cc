#include "reprise/runner/testing/swap_suite.h"

#include <ATen/ops/equal.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/runner/testing/layered_model.h"
#include "reprise/runner/testing/swap_driver.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SwapSuite);

namespace {

using ::testing::HasSubstr;

ModelRunnerOptions Options() {
  return {.max_num_seqs = 4,
          .max_num_tokens = 48,
          .max_seq_len = 64,
          .max_steps_in_flight = 2,
          .cache = {.block_size = 4}};
}

// A runner whose cache is so small that other sequences reuse swapped-out blocks, and a reference
// runner without swaps.
class Twins {
 public:
  Twins(const std::function<std::unique_ptr<Model>()>& make_model,
        const ModelRunnerOptions& options, int num_blocks) {
    for (const bool swaps : {true, false}) {
      ModelRunnerOptions own = options;
      own.cache.size = NumBlocks{swaps ? num_blocks : 400};
      own.cache.swap = NumBlocks{swaps ? 60 : 0};
      models_.push_back(make_model());
      auto created = SwapDriver::Create(models_.back().get(), own);
      EXPECT_TRUE(created.ok()) << created.status();
      if (created.ok()) drivers_[swaps ? 0 : 1] = *std::move(created);
    }
  }

  bool ok() const { return drivers_[0] != nullptr && drivers_[1] != nullptr; }
  SwapDriver& swapped() { return *drivers_[0]; }

  template <typename Call>
  void Both(Call call) {
    for (const std::unique_ptr<SwapDriver>& driver : drivers_) call(*driver);
  }

  // Runs a step of both runners, whose results are bitwise identical.
  void Step(const std::vector<int>& ids) {
    Both([&](SwapDriver& driver) { ASSERT_EQ(driver.Step(ids), absl::OkStatus()); });
    ExpectSameBits();
  }
  void Launch(const std::vector<int>& ids) {
    Both([&](SwapDriver& driver) { ASSERT_EQ(driver.Launch(ids), absl::OkStatus()); });
  }
  void Await() {
    Both([&](SwapDriver& driver) { ASSERT_EQ(driver.AwaitOldest(), absl::OkStatus()); });
    ExpectSameBits();
  }

  void ExpectSameBits() {
    const at::Tensor& got = drivers_[0]->logits();
    const at::Tensor& want = drivers_[1]->logits();
    ASSERT_TRUE(got.defined() && want.defined());
    EXPECT_FALSE(want.isnan().any().item<bool>());
    EXPECT_TRUE(at::equal(got, want)) << "step " << num_steps_;
    ++num_steps_;
  }

 private:
  std::vector<std::unique_ptr<Model>> models_;
  std::unique_ptr<SwapDriver> drivers_[2];
  int num_steps_ = 0;
};

SwapSequence Text(int first, int length, int num_encoder_tokens = 0) {
  SwapSequence sequence;
  for (int i = 0; i < length; ++i) sequence.text.push_back((first + 7 * i) % 61);
  for (int i = 0; i < num_encoder_tokens; ++i) sequence.encoder_text.push_back((first + i) % 61);
  return sequence;
}

// Two sequences alternate on the host, while other sequences overwrite their cache blocks.
void ExpectSwapsAreNotSeen(Twins& twins, bool has_encoder) {
  const auto both = [&](auto call) { twins.Both(call); };
  const int source = has_encoder ? 9 : 0;
  both([&](SwapDriver& driver) {
    driver.Join(0, SlotId(0), Text(1, 7, source));
    driver.Join(1, SlotId(1), Text(2, 9, has_encoder ? 5 : 0));
  });
  for (int i = 0; i < 5; ++i) twins.Step({0, 1});
  // One step swaps out 1 and lets 2 join in the blocks of 1.
  both([&](SwapDriver& driver) {
    driver.Out(1);
    driver.Join(2, SlotId(2), Text(3, 12, source));
  });
  for (int i = 0; i < 3; ++i) twins.Step({0, 2});
  EXPECT_GT(twins.swapped().num_reused(), 2);
  // One step swaps out 0 and swaps in 1, to another slot.
  both([&](SwapDriver& driver) {
    driver.Leave(2);
    driver.Out(0);
    driver.Back(1, driver.store() == nullptr ? SlotId(1) : SlotId(3));
  });
  for (int i = 0; i < 4; ++i) twins.Step({1});
  both([&](SwapDriver& driver) {
    driver.Join(3, SlotId(2), Text(4, 5, source));
    driver.Back(0, driver.store() == nullptr ? SlotId(0) : SlotId(1));
  });
  for (int i = 0; i < 5; ++i) twins.Step({3, 0, 1});
  both([&](SwapDriver& driver) { driver.Out(3); });
  twins.Step({0, 1});
  both([&](SwapDriver& driver) { driver.Back(3, SlotId(2)); });
  twins.Step({0, 1, 3});
  const SwapStore& store = *twins.swapped().store();
  EXPECT_EQ(store.num_sequences(), 0);
  EXPECT_EQ(store.host_pool().num_used(), 0);
  EXPECT_GT(twins.swapped().runner().graph_report().num_replays(), 10);
}

}  // namespace

TEST_P(SwapSuite, SwappedSequencesMatchBitwise) {
  Twins twins([&] { return std::make_unique<ToyModel>(ToyModelOptions{.device = GetParam()}); },
              Options(), 17);
  ASSERT_TRUE(twins.ok());
  ExpectSwapsAreNotSeen(twins, false);
}

TEST_P(SwapSuite, SwapsEveryFormOfTheCache) {
  for (const DType dtype : {DType::kFloat32, DType::kFp8E4M3}) {
    for (const KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kKPacked}) {
      for (const KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
        SCOPED_TRACE(testing::Message() << dtype << ", " << form << ", " << order);
        ModelRunnerOptions options = Options();
        options.cache.dtype = dtype;
        options.cache.form = form;
        options.cache.order = order;
        options.cache.scale_shape = KvScaleShape::kPerHead;
        ToyModelOptions model = {.device = GetParam()};
        if (dtype == DType::kFp8E4M3) model.kv_scale = 0.5f;
        Twins twins([&] { return std::make_unique<ToyModel>(model); }, options, 17);
        ASSERT_TRUE(twins.ok());
        ExpectSwapsAreNotSeen(twins, false);
      }
    }
  }
}

TEST_P(SwapSuite, SwapsWindowsAndEncoderKeys) {
  const LayerSpec full = {
      .params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}};
  LayerSpec window = full;
  window.params.window_left = 5;
  LayerSpec encoder = full;
  encoder.kind = AttentionKind::kEncoder;
  LayerSpec cross = full;
  cross.kind = AttentionKind::kEncoderDecoder;
  const LayeredModelOptions model = {.layers = {encoder, window, cross, full, cross},
                                     .max_encoder_position = 20,
                                     .device = GetParam()};
  Twins twins([&] { return std::make_unique<LayeredModel>(model); }, Options(), 36);
  ASSERT_TRUE(twins.ok());
  ExpectSwapsAreNotSeen(twins, true);
}

TEST_P(SwapSuite, SwapsStayInOrderWithStepsInFlight) {
  Twins twins([&] { return std::make_unique<ToyModel>(ToyModelOptions{.device = GetParam()}); },
              Options(), 20);
  ASSERT_TRUE(twins.ok());
  twins.Both([&](SwapDriver& driver) {
    driver.Join(0, SlotId(0), Text(1, 12));
    driver.Join(1, SlotId(1), Text(2, 12));
  });
  twins.Step({0, 1});
  for (int turn = 0; turn < 8; ++turn) {
    // Launches three steps, up to two of them in flight: 1 is swapped out; another sequence
    // overwrites its blocks and leaves; 1 is swapped in to blocks that this sequence has written.
    twins.Both([&](SwapDriver& driver) {
      driver.Out(1);
      driver.Join(10 + turn, SlotId(2), Text(turn, 17));
    });
    twins.Launch({0, 10 + turn});
    twins.Both([&](SwapDriver& driver) {
      driver.Leave(10 + turn);
      driver.Back(1, SlotId(1));
    });
    twins.Launch({0, 1});
    twins.Await();
    twins.Launch({0, 1});
    twins.Await();
    twins.Await();
  }
  EXPECT_GT(twins.swapped().num_reused(), 20);
}

TEST_P(SwapSuite, RejectedSwapChangesNothing) {
  Twins twins([&] { return std::make_unique<ToyModel>(ToyModelOptions{.device = GetParam()}); },
              Options(), 13);
  ASSERT_TRUE(twins.ok());
  twins.Both([&](SwapDriver& driver) { driver.Join(0, SlotId(0), Text(1, 12)); });
  twins.Step({0});
  const BlockCopy good = {1, 1};
  for (const BlockCopy& bad : {BlockCopy{13, 1}, BlockCopy{1, 60}, BlockCopy{0, 1}}) {
    const BlockCopy outs[] = {good, bad};
    const auto refused = twins.swapped().runner().Launch({.swap_outs = outs});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("swap_outs: "));
  }
  const BlockCopy ins[] = {{1, 1}, {60, 2}};
  EXPECT_THAT(std::string(twins.swapped().runner().Launch({.swap_ins = ins}).status().message()),
              HasSubstr("swap_ins: src blocks must be in [1, 60), got 60 to 2"));
  for (int i = 0; i < 3; ++i) twins.Step({0});  // block 1 is unchanged
}

TEST_P(SwapSuite, HostMemoryIsGivenInBlocksOrBytes) {
  ToyModel model({.device = GetParam()});
  ModelRunnerOptions options = Options();
  const auto plain = ModelRunner::Create(&model, options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ((*plain)->shape().num_swap_blocks, 0);
  EXPECT_EQ((*plain)->memory_use().swap_bytes, 0);
  EXPECT_FALSE((*plain)->step_times().has_value());
  const int64_t bytes = (*plain)->shape().bytes_per_block;
  const BlockCopy out[] = {{1, 1}};
  EXPECT_THAT(std::string((*plain)->Launch({.swap_outs = out}).status().message()),
              HasSubstr("no host memory"));
  options.cache.swap = NumBytes{5 * bytes + bytes / 2};
  const auto with = ModelRunner::Create(&model, options);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ((*with)->shape().num_swap_blocks, 5);
  EXPECT_EQ((*with)->memory_use().swap_bytes, 5 * bytes);
  ASSERT_TRUE((*with)->step_times().has_value());
  EXPECT_EQ((*with)->step_times()->num_tokens, (*with)->shape().max_num_tokens);
  EXPECT_GT((*with)->step_times()->largest_us, 0);
  EXPECT_GT((*with)->step_times()->min_us, 0);
  EXPECT_LT((*with)->step_times()->min_us, 1e6);
  options.cache.swap = NumBytes{2 * bytes - 1};
  EXPECT_THAT(std::string(ModelRunner::Create(&model, options).status().message()),
              HasSubstr("cache.swap must hold host block 0"));
}

}  // namespace reprise
