#include "reprise/runner/testing/speculation_acceptance_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/testing/forwarding_driver.h"
#include "reprise/runner/testing/speculation_harness.h"
#include "reprise/runner/testing/speculation_texts.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SpeculationAcceptanceSuite);

namespace {

using speculation_tests::ExpectTexts;
using speculation_tests::kChainDrafts;
using speculation_tests::kMaxSeqLen;
using speculation_tests::kNumNew;
using speculation_tests::kVocab;
using speculation_tests::Latents;
using speculation_tests::Options;
using speculation_tests::PlainTexts;
using speculation_tests::Request;
using speculation_tests::ShortSighted;
using speculation_tests::SomeRequests;
using speculation_tests::TwoLayers;
using speculation_tests::Windows;
using speculation_tests::WindowsAndChunks;
using ::testing::Each;
using ::testing::HasSubstr;
using Hidden = LayeredModelOptions::Hidden;
using Kind = GraphDecision::Kind;
using speculation_tests::Proposer;

LayeredModelOptions WithHidden(LayeredModelOptions model, Hidden hidden) {
  model.hidden = hidden;
  return model;
}

at::Tensor RandomMatrix(std::mt19937& rng, int64_t rows, int64_t columns, c10::Device device) {
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
  std::vector<float> values;
  for (int64_t i = 0; i < rows * columns; ++i) values.push_back(normal(rng));
  return at::from_blob(values.data(), {rows, columns}, at::TensorOptions(at::kFloat))
      .clone()
      .to(device);
}

// Heads with random weights: each pass reads the state and the token, and computes the next state.
class RandomHeads : public DraftHeads {
 public:
  RandomHeads(int64_t hidden_dim, c10::Device device, at::ScalarType dtype = at::kFloat)
      : rng_(5),
        state_(RandomMatrix(rng_, hidden_dim, hidden_dim, device).to(dtype)),
        tokens_(RandomMatrix(rng_, kVocab, hidden_dim, device).to(dtype)),
        logits_(3 * RandomMatrix(rng_, hidden_dim, kVocab, device).to(dtype)) {}

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    const at::Tensor state =
        at::tanh(at::matmul(step.hidden, state_) + tokens_.index_select(0, step.token_ids));
    return HeadsOutput{.logits = at::matmul(state, logits_), .hidden = state};
  }

 private:
  std::mt19937 rng_;
  at::Tensor state_, tokens_, logits_;
};

// Heads that know a text, except at some positions, for a model whose hidden states are positions.
// As in Medusa, each pass has its own matrix, and the state does not change.
class KnownText : public DraftHeads {
 public:
  // kAnother: another token is more probable than the known token.
  enum class Best { kKnown, kAnother };

  KnownText(const std::vector<int32_t>& text, int max_position, c10::Device device,
            Best best = Best::kKnown) {
    for (int pass = 0; pass < kChainDrafts; ++pass) {
      at::Tensor table = at::zeros({max_position, kVocab}, at::TensorOptions(at::kFloat));
      for (int position = 0; position < max_position; ++position) {
        // The state belongs to the token before the newest token.
        const size_t place = position + 2 + pass;
        if (place >= text.size()) continue;
        table[position][IsKnown(place) ? text[place] : (text[place] + 1) % kVocab] = 1000;
        if (best == Best::kAnother) table[position][(text[place] + 2) % kVocab] = 2000;
      }
      tables_.push_back(table.to(device));
    }
  }

  static bool IsKnown(size_t place) { return place % 7 != 3; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    return HeadsOutput{.logits = at::matmul(step.hidden, tables_[step.pass])};
  }

 private:
  std::vector<at::Tensor> tables_;
};

TEST_P(SpeculationAcceptanceSuite, OutputWithHeadsMatchesPlainDecoding) {
  const LayeredModelOptions model = WithHidden(TwoLayers(GetParam(), 1), Hidden::kStream);
  const std::vector<Request> requests = SomeRequests(21);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  RandomHeads heads(48, GetParam());
  ModelRunnerOptions options = Options(Proposer::kHeads);
  options.speculation.proposer = HeadsProposer{heads};
  auto harness = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::mt19937 rng(3);
  for (const int most : {1, 2, 5, kChainDrafts}) {
    ExpectTexts(**harness, requests, want, [&](int slot, int room) {
      const int count = rng() % 4 == 0 ? static_cast<int>(rng() % (most + 1)) : most;
      return SpeculationRow{.slot = slot, .num_drafts = std::min(count, room)};
    });
    for (int slot = 0; slot < 4; ++slot) (*harness)->Leave(slot);
  }
}

// The state that heads read belongs to the position from which the newest token was chosen,
// whatever was accepted before. Drafts are therefore wrong only where the heads are wrong.
TEST_P(SpeculationAcceptanceSuite, HeadsReadTheStateOfTheNewestTokensChoice) {
  const LayeredModelOptions model = WithHidden(TwoLayers(GetParam(), 1), Hidden::kPosition);
  // One text for four sequences that start at different steps.
  std::vector<Request> requests(4, SomeRequests(22)[1]);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, {requests[0]});
  KnownText heads(want[0], model.max_position, GetParam());
  ModelRunnerOptions options = Options(Proposer::kHeads);
  options.speculation.proposer = HeadsProposer{heads};
  auto made = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(made.ok()) << made.status();
  SpeculationHarness& harness = **made;
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    harness.Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
    ASSERT_STEP(harness.Step({{.slot = slot}}));
    for (int i = 0; i < slot; ++i) ASSERT_STEP(harness.Step({{.slot = slot}}));  // plain steps
  }
  for (int step = 0; step < 8; ++step) {
    std::vector<int> expected;
    for (int slot = 0; slot < 4; ++slot) {
      const size_t length = harness.text(slot).size();
      rows[slot].num_drafts = step % 3 == 0 ? 2 : 5;
      const size_t room = want[0].size() - std::min(want[0].size(), length + 1);
      rows[slot].num_drafts = std::min<int>(rows[slot].num_drafts, static_cast<int>(room));
      int num_new = 1;
      while (num_new <= rows[slot].num_drafts && KnownText::IsKnown(length + num_new - 1)) {
        ++num_new;
      }
      expected.push_back(num_new);
    }
    ASSERT_STEP(harness.Step(rows));
    EXPECT_EQ(harness.num_new(), expected) << "step " << step;
    for (int slot = 0; slot < 4; ++slot) {
      const std::vector<int32_t>& text = harness.text(slot);
      const size_t length = std::min(text.size(), want[0].size());
      ASSERT_TRUE(std::equal(text.begin(), text.begin() + length, want[0].begin())) << step;
    }
  }
}

// The known token is only the second most probable token, so chains are never right. The tree has
// two drafts after the newest token, and two after the second draft of each level.
TEST_P(SpeculationAcceptanceSuite, TreesOfHeadsContainLessProbableTokens) {
  const LayeredModelOptions model = WithHidden(TwoLayers(GetParam(), 1), Hidden::kPosition);
  const Request request = SomeRequests(22)[1];
  const std::vector<int32_t> want = PlainTexts(model, {request})[0];
  for (const bool is_tree : {false, true}) {
    SCOPED_TRACE(is_tree);
    KnownText heads(want, model.max_position, GetParam(), KnownText::Best::kAnother);
    ModelRunnerOptions options = Options(Proposer::kHeads);
    options.speculation.proposer = HeadsProposer{heads};
    options.speculation.max_drafts = 6;
    options.speculation.graph_num_drafts = {2, 6};
    if (is_tree) {
      options.speculation.shape = DraftShape::kTree;
      options.speculation.tree = {0, 0, 2, 2, 4, 4};
    }
    auto harness = SpeculationHarness::Create(options, model);
    ASSERT_TRUE(harness.ok()) << harness.status();
    (*harness)->Join(0, request.prompt, request.sampling);
    ASSERT_STEP((*harness)->Step({{.slot = 0}}));
    for (int step = 0; step < 7; ++step) {
      const size_t length = (*harness)->text(0).size();
      const int num_drafts = step % 3 == 0 ? 2 : 6;  // one level, or all three
      const int num_levels = num_drafts / 2;
      int num_new = 1;
      while (is_tree && num_new <= num_levels && KnownText::IsKnown(length + num_new - 1)) {
        ++num_new;
      }
      ASSERT_STEP((*harness)->Step({{.slot = 0, .num_drafts = num_drafts}}));
      EXPECT_EQ((*harness)->num_new(), std::vector<int>{num_new}) << "step " << step;
      const std::vector<int32_t>& text = (*harness)->text(0);
      ASSERT_LE(text.size(), want.size());
      ASSERT_TRUE(std::equal(text.begin(), text.end(), want.begin())) << step;
    }
  }
}

ModelRunnerOptions WithRejection(ModelRunnerOptions options) {
  options.speculation.acceptance = DraftAcceptance::kRejection;
  return options;
}

// Generates all four texts together, with `num_drafts` drafts per step, and returns them.
std::vector<std::vector<int32_t>> TextsOf(SpeculationHarness& harness,
                                          const std::vector<Request>& requests, int num_drafts) {
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    harness.Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  absl::Status status = harness.Step(rows);
  std::vector<std::vector<int32_t>> texts;
  while (status.ok() && !rows.empty()) {
    rows.clear();
    for (int slot = 0; slot < 4; ++slot) {
      const size_t length = harness.text(slot).size();
      if (length >= requests[slot].prompt.size() + kNumNew) continue;
      const int room = kMaxSeqLen - static_cast<int>(length);
      rows.push_back({.slot = slot, .num_drafts = std::min(num_drafts, room)});
    }
    if (!rows.empty()) status.Update(harness.Step(rows));
  }
  EXPECT_TRUE(status.ok()) << status;
  for (int slot = 0; slot < 4; ++slot) {
    texts.push_back(harness.text(slot));
    texts.back().resize(requests[slot].prompt.size() + kNumNew);
    harness.Leave(slot);
  }
  return texts;
}

TEST_P(SpeculationAcceptanceSuite, RejectionIsReproducibleForTheSameSeedAndDrafts) {
  const LayeredModelOptions model = WithHidden(TwoLayers(GetParam(), 1), Hidden::kStream);
  std::vector<Request> requests = SomeRequests(23);
  const std::vector<std::vector<int32_t>> plain = PlainTexts(model, requests);
  RandomHeads heads(48, GetParam());
  for (const Proposer proposer : {Proposer::kNgram, Proposer::kModel, Proposer::kHeads}) {
    SCOPED_TRACE(testing::Message() << "proposer " << static_cast<int>(proposer));
    ModelRunnerOptions options = WithRejection(Options(proposer));
    if (proposer == Proposer::kHeads) options.speculation.proposer = HeadsProposer{heads};
    auto harness = SpeculationHarness::Create(options, model, TwoLayers(GetParam(), 2));
    ASSERT_TRUE(harness.ok()) << harness.status();
    const std::vector<std::vector<int32_t>> texts = TextsOf(**harness, requests, 4);
    EXPECT_EQ(TextsOf(**harness, requests, 4), texts);
    EXPECT_EQ(texts[0], plain[0]);  // the greedy request
    if (proposer != Proposer::kNgram) {
      EXPECT_NE(texts, plain);  // with rejection, the text depends on the drafts
    }
    EXPECT_EQ(TextsOf(**harness, requests, 0), plain);
  }
}

// The model's own drafts are accepted, up to the rounding of GEMMs with another shape.
TEST_P(SpeculationAcceptanceSuite, RejectionAcceptsTheModelsOwnDrafts) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(24);
  auto harness = SpeculationHarness::Create(WithRejection(Options(Proposer::kModel)), model, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  ASSERT_STEP((*harness)->Step(rows));
  for (SpeculationRow& row : rows) row.num_drafts = 5;
  for (int step = 0; step < 8; ++step) {
    ASSERT_STEP((*harness)->Step(rows));
    EXPECT_THAT((*harness)->num_new(), Each(6)) << "step " << step;
  }
}

// Counts the first two tokens after a prompt over many seeds. The second token is at the position
// of a draft.
TEST_P(SpeculationAcceptanceSuite, RejectionPreservesTheModelsDistribution) {
  constexpr int kSlots = 32;
  constexpr int kRounds = 70;
  const std::vector<int32_t> prompt = {3, 1, 4};
  const LayeredModelOptions model = WithHidden(TwoLayers(GetParam(), 1), Hidden::kStream);
  RandomHeads heads(48, GetParam());
  for (const Proposer proposer : {Proposer::kModel, Proposer::kNgram, Proposer::kHeads}) {
    SCOPED_TRACE(testing::Message() << "proposer " << static_cast<int>(proposer));
    ModelRunnerOptions options = WithRejection(Options(proposer));
    options.max_num_seqs = kSlots;
    options.max_num_tokens = kSlots * (1 + kChainDrafts);
    options.max_seq_len = 16;
    options.cache.size = NumBlocks{1 + kSlots * 2 * 4};  // two groups
    options.graphs.sizes = {kSlots};
    if (proposer == Proposer::kHeads) options.speculation.proposer = HeadsProposer{heads};
    auto harness = SpeculationHarness::Create(options, model, ShortSighted(GetParam(), 2));
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::map<std::pair<int, int>, int> counts;
    std::vector<SpeculationRow> rows;
    for (int slot = 0; slot < kSlots; ++slot) rows.push_back({.slot = slot});
    for (int round = 0; round < kRounds; ++round) {
      for (int slot = 0; slot < kSlots; ++slot) {
        rows[slot].num_drafts = 0;
        const auto seed = static_cast<uint64_t>(round * kSlots + slot);
        (*harness)->Join(slot, prompt, {.temperature = 1.0f, .top_k = 3, .seed = seed});
      }
      ASSERT_STEP((*harness)->Step(rows));
      for (SpeculationRow& row : rows) row.num_drafts = 2;
      ASSERT_STEP((*harness)->Step(rows));
      for (int slot = 0; slot < kSlots; ++slot) {
        const std::vector<int32_t>& text = (*harness)->text(slot);
        ++counts[{text[3], text[4]}];
        (*harness)->Leave(slot);
      }
    }
    // The probabilities with top_k 3, in float64.
    const LayeredModel dense(model);
    const auto kept = [&](const std::vector<int32_t>& text) {
      const at::Tensor logits = dense.DenseLogits(text, {});
      const auto [values, ids] = logits[logits.size(0) - 1].topk(3);
      const at::Tensor p = values.softmax(0);
      std::map<int, double> result;
      for (int i = 0; i < 3; ++i) result[ids[i].item<int>()] = p[i].item<double>();
      return result;
    };
    double chi_square = 0;
    int num_cells = 0;
    int num_found = 0;
    for (const auto& [first, p_first] : kept(prompt)) {
      std::vector<int32_t> text = prompt;
      text.push_back(first);
      for (const auto& [second, p_second] : kept(text)) {
        const double expected = kSlots * kRounds * p_first * p_second;
        const int count = counts[{first, second}];
        num_found += count;
        if (expected < 5) continue;
        chi_square += (count - expected) * (count - expected) / expected;
        ++num_cells;
      }
    }
    EXPECT_EQ(num_found, kSlots * kRounds);  // no other token pairs
    ASSERT_GT(num_cells, 3);
    EXPECT_LT(chi_square, (num_cells - 1) + 4.5 * std::sqrt(2.0 * (num_cells - 1)));
  }
}

// Counts the driver's calls for sampling and verification.
class CountingDriver : public ForwardingDriver {
 public:
  CountingDriver(std::unique_ptr<DeviceDriver> driver, int* num_samples, int* num_verified)
      : ForwardingDriver(std::move(driver)),
        num_samples_(num_samples),
        num_verified_(num_verified) {}

  absl::Status Sample(const SampleArgs& args) override {
    ++*num_samples_;
    return ForwardingDriver::Sample(args);
  }
  absl::Status AcceptDrafts(const AcceptDraftsArgs& args) override {
    ++*num_verified_;
    return ForwardingDriver::AcceptDrafts(args);
  }

 private:
  int* num_samples_;
  int* num_verified_;
};

// On the CPU, a replay also counts the calls within the graph; on a GPU, these calls were made
// once, at capture.
TEST_P(SpeculationAcceptanceSuite, ReplayVerifiesDraftsUnlessStagesRunBefore) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(25);
  ModelRunnerOptions options = Options(Proposer::kNgram);
  options.logits.max_log_probs = 2;
  int num_samples = 0;
  int num_verified = 0;
  auto driver = MakeDeviceDriver(GetParam(), {});
  ASSERT_TRUE(driver.ok()) << driver.status();
  auto harness = SpeculationHarness::Create(
      options, model, {},
      std::make_unique<CountingDriver>(*std::move(driver), &num_samples, &num_verified));
  ASSERT_TRUE(harness.ok()) << harness.status();
  (*harness)->Join(0, requests[0].prompt, requests[0].sampling);
  (*harness)->Join(1, requests[1].prompt, requests[1].sampling);
  ASSERT_STEP((*harness)->Step({{.slot = 0}, {.slot = 1}}));
  const int in_graph = GetParam().is_cpu() ? 1 : 0;
  // The first step captures its graph unless it has been captured before.
  ASSERT_STEP((*harness)->Step({{.slot = 0, .num_drafts = 2}, {.slot = 1}}));
  for (int step = 0; step < 4; ++step) {
    num_samples = 0;
    num_verified = 0;
    ASSERT_STEP((*harness)->Step({{.slot = 0, .num_drafts = 2}, {.slot = 1}}));
    EXPECT_EQ((*harness)->decision().kind, Kind::kReplay);
    EXPECT_EQ(num_samples, in_graph);
    EXPECT_EQ(num_verified, in_graph);
  }
  // A third sequence requests log-probabilities, whose stage runs between logits and tokens.
  const LogitsRequest request = {.slot = SlotId(2), .params = {.num_log_probs = 1}};
  (*harness)->JoinWith(request, requests[2].prompt);
  ASSERT_STEP((*harness)->Step({{.slot = 2}}));  // the prompt
  num_samples = 0;
  num_verified = 0;
  ASSERT_STEP((*harness)->Step({{.slot = 0, .num_drafts = 2}, {.slot = 2}}));
  EXPECT_EQ((*harness)->decision().kind, Kind::kReplay);
  EXPECT_EQ(num_samples, in_graph + 1);
  EXPECT_EQ(num_verified, in_graph + 1);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  for (const int slot : {0, 1}) {
    const std::vector<int32_t>& text = (*harness)->text(slot);
    ASSERT_LE(text.size(), want[slot].size());
    EXPECT_EQ(text, std::vector<int32_t>(want[slot].begin(), want[slot].begin() + text.size()));
  }
}

// With batch invariance, rows of several tokens are computed like rows of one token, so that a
// row's results do not depend on the step's shape. `plain` has the same max_drafts, because prompts
// with at most max_drafts + 1 tokens are also computed in this way.
void ExpectInvariantTexts(LayeredModelOptions model, DType dtype, uint32_t seed) {
  model = WithHidden(model, Hidden::kStream);
  model.dtype = dtype;
  LayeredModelOptions draft = ShortSighted(model.device, 1);
  draft.dtype = dtype;
  const std::vector<Request> requests = SomeRequests(seed);
  ModelRunnerOptions plain = Options(Proposer::kNone);
  plain.device.batch_invariance = BatchInvariance::kOn;
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests, plain);
  RandomHeads heads(48, model.device, dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
  for (const Proposer proposer :
       {Proposer::kNone, Proposer::kNgram, Proposer::kModel, Proposer::kHeads}) {
    SCOPED_TRACE(testing::Message() << "proposer " << static_cast<int>(proposer));
    ModelRunnerOptions options = Options(proposer);
    options.device.batch_invariance = BatchInvariance::kOn;
    if (proposer == Proposer::kHeads) options.speculation.proposer = HeadsProposer{heads};
    auto harness = SpeculationHarness::Create(options, model, draft);
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::mt19937 rng(8);
    ExpectTexts(**harness, requests, want, [&](int slot, int room) {
      const int count = std::min(static_cast<int>(rng() % (1 + kChainDrafts)), room);
      SpeculationRow row{.slot = slot, .num_drafts = proposer == Proposer::kNone ? 0 : count};
      const size_t length = (*harness)->text(slot).size();
      for (int i = 0; proposer == Proposer::kNone && i < count; ++i) {
        const int32_t right = length + i < want[slot].size() ? want[slot][length + i] : 0;
        row.drafts.push_back(rng() % 4 == 0 ? static_cast<int32_t>(rng() % kVocab) : right);
      }
      return row;
    });
    if (testing::Test::HasFailure()) return;
  }
}

void ExpectInvariantTextsOfAll(c10::Device device, DType dtype) {
  for (const LayeredModelOptions& model : {TwoLayers(device, 1), Windows(device, 1),
                                           WindowsAndChunks(device, 1), Latents(device, 1)}) {
    for (const uint32_t seed : {26, 27, 28}) {
      SCOPED_TRACE(testing::Message()
                   << "window " << model.layers[0].params.window_left.value_or(-1) << ", chunks "
                   << model.layers[1].chunk_size.value_or(0) << ", head dim "
                   << model.layers[0].params.head_dim_qk << ", seed " << seed);
      ExpectInvariantTexts(model, dtype, seed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(SpeculationAcceptanceSuite, BFloat16OutputMatchesPlainDecoding) {
  ExpectInvariantTextsOfAll(GetParam(), DType::kBFloat16);
}

TEST_P(SpeculationAcceptanceSuite, InvariantFloat32OutputMatchesPlainDecoding) {
  ExpectInvariantTextsOfAll(GetParam(), DType::kFloat32);
}

TEST_P(SpeculationAcceptanceSuite, RejectsBadOptions) {
  const LayeredModelOptions plain = TwoLayers(GetParam(), 1);
  RandomHeads heads(48, GetParam());
  const auto message = [&](const SpeculationOptions& speculation,
                           const LayeredModelOptions& model) {
    ModelRunnerOptions options = Options(Proposer::kNone);
    options.speculation = speculation;
    return std::string(SpeculationHarness::Create(options, model).status().message());
  };
  const LayeredModelOptions model = WithHidden(plain, Hidden::kStream);
  EXPECT_THAT(message({.max_drafts = 2, .proposer = HeadsProposer{heads}}, plain),
              HasSubstr("the model's hidden_dim (for HeadsProposer) is too small"));
  EXPECT_THAT(
      message(
          {.max_drafts = 2, .shape = DraftShape::kTree, .acceptance = DraftAcceptance::kRejection},
          model),
      HasSubstr("speculation.acceptance kRejection requires chains"));
}

}  // namespace
}  // namespace reprise
