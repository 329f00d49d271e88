// Preemption by swaps, over models. With batch invariance, the logits of every token are bitwise
// identical to those of a run without preemption.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {
namespace {

constexpr int kVocab = 37;

// Tokens and the logits that they were chosen from, by sequence and index.
using Tokens = std::map<std::pair<int64_t, int>, std::pair<int32_t, at::Tensor>>;

std::vector<Request> Requests() {
  std::mt19937 rng(7);
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    Request request = {.max_new_tokens = 30};
    for (int n = 0; n < 6 + i; ++n) request.prompt.push_back(static_cast<int32_t>(rng() % kVocab));
    if (i % 2 == 1) request.sampling = {.temperature = 1, .seed = 90u + i};
    requests.push_back(request);
  }
  return requests;
}

class EngineSwapTest : public testing::Test {
 protected:
  EngineSwapTest() { at::set_num_threads(1); }

  Tokens Run(int num_blocks, int num_swap_blocks, PreemptionMode mode) {
    const LayerSpec full = {
        .params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}};
    LayerSpec window = full;
    window.params.window_left = 8;
    LayeredModel model({.layers = {window, full}, .vocab_size = kVocab});
    auto engine = CreateEngine(
        &model, {.runner = {.max_num_seqs = 4,
                            .max_num_tokens = 32,
                            .max_seq_len = 64,
                            .cache = {.block_size = 4,
                                      .size = NumBlocks{num_blocks},
                                      .swap = NumBlocks{num_swap_blocks}},
                            .device = {.batch_invariance = BatchInvariance::kOn}},
                 .scheduler = {.prefix_reuse = PrefixReuse::kOff, .preemption = mode}});
    EXPECT_TRUE(engine.ok()) << engine.status();
    Tokens tokens;
    if (!engine.ok()) return tokens;
    for (const Request& request : Requests()) EXPECT_TRUE((*engine)->Add(request).ok());
    std::vector<TokenEvent> events;
    while ((*engine)->has_work()) {
      events.clear();
      const absl::Status status = (*engine)->Step(events);
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return tokens;
      for (const TokenEvent& event : events) {
        EXPECT_TRUE(event.token.has_value()) << event.error;
        tokens[{event.sequence.value(), event.index}] = {event.token.value_or(-1),
                                                         LogitsOf(**engine, event)->clone()};
      }
      (*engine)->scheduler().CheckInvariants();
    }
    metrics_ = (*engine)->metrics();
    bytes_per_block_ = ModelRunnerOf(**engine).shape().bytes_per_block;
    return tokens;
  }

  EngineMetrics metrics_;  // metrics of the last run
  int64_t bytes_per_block_ = 0;
  StepTimes times_;
};

TEST_F(EngineSwapTest, LogitsOfSwappedSequencesMatchALargeCache) {
  const Tokens alone = Run(400, 0, PreemptionMode::kSwap);
  EXPECT_EQ(metrics_.num_preemptions, 0);
  const Tokens swapped = Run(36, 100, PreemptionMode::kSwap);
  EXPECT_GT(metrics_.num_preemptions, 2);
  EXPECT_EQ(metrics_.num_swap_preemptions, metrics_.num_preemptions);
  EXPECT_GT(metrics_.num_swapped_out_bytes, 10 * bytes_per_block_);
  EXPECT_EQ(metrics_.num_swapped_out_bytes % bytes_per_block_, 0);
  EXPECT_EQ(metrics_.num_swapped_in_bytes, metrics_.num_swapped_out_bytes);
  EXPECT_EQ(metrics_.num_swap_blocks_used, 0);
  ASSERT_EQ(swapped.size(), 7u * 30);
  ASSERT_EQ(alone.size(), swapped.size());
  for (const auto& [at, chosen] : alone) {
    const auto& [token, logits] = swapped.at(at);
    EXPECT_EQ(token, chosen.first) << "sequence " << at.first << ", token " << at.second;
    EXPECT_TRUE(at::equal(logits, chosen.second))
        << "sequence " << at.first << ", token " << at.second;
  }
}

TEST_F(EngineSwapTest, SequencesRecomputeIfHostMemoryIsFull) {
  const Tokens alone = Run(400, 0, PreemptionMode::kSwap);
  const Tokens swapped = Run(36, 12, PreemptionMode::kSwap);
  EXPECT_GT(metrics_.num_swap_preemptions, 0);
  EXPECT_LT(metrics_.num_swap_preemptions, metrics_.num_preemptions);
  EXPECT_EQ(metrics_.num_swapped_in_bytes, metrics_.num_swapped_out_bytes);
  ASSERT_EQ(alone.size(), swapped.size());
  for (const auto& [at, chosen] : alone) EXPECT_EQ(swapped.at(at).first, chosen.first);
}

TEST_F(EngineSwapTest, PreemptionCostsAreMeasuredUnlessGiven) {
  LayeredModel model(
      {.layers =
           {{.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}}},
       .vocab_size = kVocab});
  const auto costs_of = [&](const ModelEngineOptions& options) {
    const auto engine = CreateEngine(&model, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (const auto& times = ModelRunnerOf(**engine).step_times()) times_ = *times;
    return *(*engine)->scheduler().options().policy.preemption_costs;
  };
  ModelEngineOptions options = {
      .runner = {.max_num_seqs = 4,
                 .max_num_tokens = 32,
                 .max_seq_len = 64,
                 .cache = {.size = NumBlocks{36}, .swap = NumBlocks{10}}}};
  const PreemptionCosts measured = costs_of(options);
  EXPECT_DOUBLE_EQ(measured.us_per_prompt_token, times_.largest_us / 32);
  EXPECT_LE(measured.num_hidden_tokens, 32);
  EXPECT_EQ(measured.out_gb_per_s, H200PreemptionCosts().out_gb_per_s);
  options.scheduler.preemption_costs = PreemptionCosts{
      .us_per_prompt_token = 3, .num_hidden_tokens = 5, .out_gb_per_s = 7, .in_gb_per_s = 9};
  EXPECT_EQ(costs_of(options).us_per_prompt_token, 3);
  EXPECT_EQ(costs_of(options).num_hidden_tokens, 5);
  // An engine without swaps does not measure.
  times_ = {};
  options.scheduler.preemption_costs.reset();
  options.runner.cache.swap = NumBlocks{0};
  EXPECT_EQ(costs_of(options).us_per_prompt_token, H200PreemptionCosts().us_per_prompt_token);
  EXPECT_EQ(times_.num_tokens, 0);
}

}  // namespace
}  // namespace reprise
