// An engine with drafts over a real runner. Rejection sampling keeps the model's distribution,
// outputs depend only on the seed and not on the order of requests, and steps with drafts and
// prompts replay graphs.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/draft_costs.h"
#include "reprise/engine/testing/attending_heads_suite.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {
namespace {

enum class Proposer { kNgram, kModel };

constexpr int kVocab = 7;  // so small that each token has occurred before
constexpr int kTopK = 3;

LayeredModelOptions OneLayer(uint64_t seed) {
  return {
      .layers =
          {{.params = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 16, .head_dim_v = 16}}},
      .vocab_size = kVocab,
      .seed = seed};
}

ModelEngineOptions Options(Proposer proposer, int max_num_seqs, LayeredModel* draft) {
  ModelEngineOptions options = {
      .runner = {
          .max_num_seqs = max_num_seqs,
          .max_num_tokens = 512,
          .max_seq_len = 48,
          .cache = {.block_size = 4, .size = NumBlocks{1 + 32 * 12}},
          .graphs = {
              .sizes = {max_num_seqs}, .mixed = MixedGraphs::kOn, .mixed_tokens = {128, 512}}}};
  options.runner.speculation = {
      .max_drafts = 2, .proposer = NgramProposer{}, .acceptance = DraftAcceptance::kRejection};
  if (proposer == Proposer::kModel) options.runner.speculation.proposer = ModelProposer{*draft};
  return options;
}

class EngineSpeculationTest : public testing::TestWithParam<Proposer> {
 protected:
  EngineSpeculationTest() : model_(OneLayer(1)), draft_(OneLayer(2)) { at::set_num_threads(1); }

  static std::vector<int32_t> Prompt() { return {0, 1, 2, 3, 4, 5, 6, 2, 0, 3, 1}; }

  // Runs requests with the seeds [0, num_texts), added in this or in reverse order. Returns their
  // texts by seed.
  std::vector<std::vector<int32_t>> Texts(Engine& engine, int num_texts, int max_new_tokens,
                                          bool reverse) {
    for (int i = 0; i < num_texts; ++i) {
      const int seed = reverse ? num_texts - 1 - i : i;
      const auto id = engine.Add(
          {.prompt = Prompt(),
           .max_new_tokens = max_new_tokens,
           .sampling = {.temperature = 1.0f, .top_k = kTopK, .seed = static_cast<uint64_t>(seed)}});
      EXPECT_TRUE(id.ok()) << id.status();
    }
    std::vector<std::vector<int32_t>> texts;
    for (auto& [id, text] : RunAll(engine)) texts.push_back(std::move(text));
    if (reverse) std::reverse(texts.begin(), texts.end());
    return texts;
  }

  // Returns the probabilities of the tokens that may follow, in float64.
  std::map<int32_t, double> Kept(const std::vector<int32_t>& text) const {
    const at::Tensor logits = model_.DenseLogits(text, {});
    const auto [values, ids] = logits[logits.size(0) - 1].topk(kTopK);
    const at::Tensor p = values.softmax(0);
    std::map<int32_t, double> result;
    for (int i = 0; i < kTopK; ++i) {
      result[static_cast<int32_t>(ids[i].item<int64_t>())] = p[i].item<double>();
    }
    return result;
  }

  // Adds the probabilities of all continuations of `text` to `length` generated tokens.
  void AddProbabilities(const std::vector<int32_t>& text, size_t length, double probability,
                        std::map<std::vector<int32_t>, double>& all) const {
    if (text.size() == Prompt().size() + length) {
      all[{text.end() - static_cast<int64_t>(length), text.end()}] = probability;
      return;
    }
    for (const auto& [token, p] : Kept(text)) {
      std::vector<int32_t> longer = text;
      longer.push_back(token);
      AddProbabilities(longer, length, probability * p, all);
    }
  }

  LayeredModel model_;
  LayeredModel draft_;
};

TEST_P(EngineSpeculationTest, RejectionSamplingKeepsTheDistributionOfTexts) {
  constexpr int kNumTexts = 2500;
  constexpr int kLength = 5;
  auto engine = CreateEngine(&model_, Options(GetParam(), 32, &draft_));
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::map<std::vector<int32_t>, int> counts;
  for (std::vector<int32_t>& text : Texts(**engine, kNumTexts, kLength, /*reverse=*/false)) {
    ++counts[std::move(text)];
  }
  const SpeculationStatistics statistics = (*engine)->metrics().speculation;
  EXPECT_GT(statistics.num_accepted, kNumTexts / 10);
  EXPECT_LT(statistics.num_accepted, statistics.num_drafts - kNumTexts / 10);

  std::map<std::vector<int32_t>, double> probabilities;
  AddProbabilities(Prompt(), kLength, 1, probabilities);
  double chi_square = 0;
  int num_cells = 0;
  int num_found = 0;
  double rare = 0;  // total expectation of the cells that are too rare to test separately
  int num_rare = 0;
  for (const auto& [text, probability] : probabilities) {
    const double expected = kNumTexts * probability;
    const int count = counts[text];
    num_found += count;
    if (expected < 8) {
      rare += expected;
      num_rare += count;
      continue;
    }
    chi_square += (count - expected) * (count - expected) / expected;
    ++num_cells;
  }
  if (rare >= 8) {
    chi_square += (num_rare - rare) * (num_rare - rare) / rare;
    ++num_cells;
  }
  EXPECT_EQ(num_found, kNumTexts) << "texts that top_k does not allow";
  ASSERT_GT(num_cells, 8);
  EXPECT_LT(chi_square, (num_cells - 1) + 4.5 * std::sqrt(2.0 * (num_cells - 1)));
}

// The text of a seed does not depend on the other sequences, nor on prefix hits: a drafter can read
// the tokens of blocks that other sequences have computed, so the drafts are the same.
TEST_P(EngineSpeculationTest, RejectionSamplingOfASeedDoesNotDependOnTheBatch) {
  constexpr int kNumTexts = 40;
  constexpr int kLength = 20;
  auto engine = CreateEngine(&model_, Options(GetParam(), 32, &draft_));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto want = Texts(**engine, kNumTexts, kLength, /*reverse=*/false);
  ASSERT_EQ(want.size(), static_cast<size_t>(kNumTexts));
  EXPECT_EQ(Texts(**engine, kNumTexts, kLength, /*reverse=*/true), want) << "with prefix hits";
  EXPECT_GT((*engine)->metrics().num_prefix_tokens_hit, 0);

  ModelEngineOptions alone = Options(GetParam(), 3, &draft_);
  alone.scheduler.prefix_reuse = PrefixReuse::kOff;
  auto other = CreateEngine(&model_, alone);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(Texts(**other, kNumTexts, kLength, /*reverse=*/true), want);
  EXPECT_EQ((*other)->metrics().num_prefix_tokens_hit, 0);
}

// Sequences are admitted while other sequences decode with drafts. No step runs eagerly.
TEST_P(EngineSpeculationTest, StepsWithDraftsAndPromptsAreReplayed) {
  ModelEngineOptions options = Options(GetParam(), 8, &draft_);
  options.runner.speculation.acceptance = DraftAcceptance::kSameText;
  options.scheduler.speculation = SpeculationPolicy{.num_drafts = 2};  // independent of step times
  ModelEngineOptions plain = options;
  plain.runner.speculation = {};
  plain.scheduler.speculation = std::nullopt;
  auto engine = CreateEngine(&model_, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto plain_engine = CreateEngine(&model_, plain);
  ASSERT_TRUE(plain_engine.ok()) << plain_engine.status();
  std::mt19937 rng(4);
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request& request = requests.emplace_back();
    for (int n = 1 + static_cast<int>(rng() % 20); n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(rng() % kVocab));
    }
    request.max_new_tokens = 1 + static_cast<int>(rng() % 25);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = rng();
  }
  for (const Request& request : requests) {
    ASSERT_TRUE((*engine)->Add(request).ok());
    ASSERT_TRUE((*plain_engine)->Add(request).ok());
  }
  EXPECT_EQ(RunAll(**engine), RunAll(**plain_engine));
  const GraphReport& report = ModelRunnerOf(**engine).graph_report();
  EXPECT_EQ(report.num_eager_steps(), 0) << report.ToString();
  int64_t num_mixed = 0;
  for (const GraphStats& graph : report.graphs()) {
    const bool is_mixed = graph.key.max_query_len == graph.key.padded_num_tokens;
    if (graph.key.num_drafts > 0 && is_mixed) num_mixed += graph.num_replays;
  }
  EXPECT_GT(num_mixed, 5) << report.ToString();
}

// A model whose forward pass advances the clock of the test. All other calls together advance it by
// far less.
class TakesTime : public LayeredModel {
 public:
  TakesTime(const LayeredModelOptions& options, absl::Duration time, absl::Time* now)
      : LayeredModel(options), time_(time), now_(now) {}

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    *now_ += time_;
    return LayeredModel::Forward(step);
  }

 private:
  absl::Duration time_;
  absl::Time* now_;
};

// Without a policy, the engine measures. It uses a fast draft model whose drafts are all right, and
// uses a slow draft model only to measure it. Runs eagerly and with graphs.
TEST(MeasuredDraftsTest, StepsHaveDraftsIfDraftsPay) {
  at::set_num_threads(1);
  for (const auto mode : {GraphSetOptions::Mode::kOff, GraphSetOptions::Mode::kEager}) {
    for (const bool is_slow : {false, true}) {
      SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << ", slow " << is_slow);
      absl::Time now = absl::UnixEpoch();
      TakesTime model(OneLayer(1), absl::Microseconds(100), &now);
      TakesTime draft(OneLayer(1), absl::Microseconds(is_slow ? 200 : 20), &now);
      ModelEngineOptions options = Options(Proposer::kModel, 2, &draft);
      options.runner.speculation.acceptance = DraftAcceptance::kSameText;
      options.runner.max_seq_len = 200;
      options.runner.cache.size = NumBlocks{1 + 2 * 50};
      options.runner.graphs.mode = mode;
      options.clock = [&now] { return now += absl::Microseconds(1); };
      auto engine = CreateEngine(&model, options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      const Request request = {.prompt = {1, 2, 3, 4},
                               .max_new_tokens = 190,
                               .sampling = {.temperature = 1.0f, .seed = 3}};
      ASSERT_TRUE((*engine)->Add(request).ok());
      const auto texts = RunAll(**engine);
      options.runner.speculation = {};
      auto plain = CreateEngine(&model, options);
      ASSERT_TRUE(plain.ok()) << plain.status();
      ASSERT_TRUE((*plain)->Add(request).ok());
      EXPECT_EQ(texts, RunAll(**plain));
      const EngineMetrics metrics = (*engine)->metrics();
      const int best =
          (*engine)->scheduler().draft_costs().Best({.num_rows = 1, .num_drafting = 1, .most = 2});
      EXPECT_EQ(best, is_slow ? 0 : 2);
      EXPECT_GE(metrics.speculation.num_rows, DraftCosts::kFirstRows);
      if (is_slow) {
        EXPECT_GT(metrics.speculation.num_unpaid_steps, 100);
        EXPECT_LE(metrics.speculation.num_rows, DraftCosts::kFirstRows + 10);
      } else {
        EXPECT_LE(metrics.speculation.num_unpaid_steps, DraftCosts::kMinTimes + 3);
      }
      const bool is_captured = mode == GraphSetOptions::Mode::kEager;
      EXPECT_EQ(ModelRunnerOf(**engine).graph_report().num_eager_steps() == 0, is_captured);
    }
  }
}

// With rejection sampling and measured steps, the text would depend on the clock.
TEST(MeasuredDraftsTest, RejectionSamplingDoesNotMeasureSteps) {
  absl::Time now = absl::UnixEpoch();
  TakesTime model(OneLayer(1), absl::Microseconds(100), &now);
  TakesTime draft(OneLayer(1), absl::Microseconds(900), &now);
  ModelEngineOptions options = Options(Proposer::kModel, 2, &draft);
  options.clock = [&now] { return now += absl::Microseconds(1); };
  auto engine = CreateEngine(&model, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE((*engine)->Add({.prompt = {1, 2}, .max_new_tokens = 44}).ok());
  }
  RunAll(**engine);
  EXPECT_GT((*engine)->metrics().speculation.num_rows, 80);
  EXPECT_EQ((*engine)->metrics().speculation.num_unpaid_steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttendingHeadsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Proposers, EngineSpeculationTest,
                         testing::Values(Proposer::kNgram, Proposer::kModel), [](const auto& info) {
                           return info.param == Proposer::kNgram ? "Ngram" : "Model";
                         });

}  // namespace
}  // namespace reprise
