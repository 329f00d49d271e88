// Texts with every proposer, with chains and trees, for every kind of model: with many prompts, up
// to the end of the context, and with the maximum number of drafts. REPRISE_SPECULATION_PROMPTS
// sets the number of prompts; the default is 200. 8 prompts cover every length of chains: use 8
// with tools that make tests slow.

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/speculation/drafter.h"
#include "reprise/runner/testing/speculation_harness.h"
#include "reprise/runner/testing/speculation_suite.h"
#include "reprise/runner/testing/speculation_texts.h"

namespace reprise {

namespace {

using speculation_tests::ExpectTexts;
using speculation_tests::kChainDrafts;
using speculation_tests::kMaxSeqLen;
using speculation_tests::kVocab;
using speculation_tests::Options;
using speculation_tests::PlainTexts;
using speculation_tests::Proposer;
using speculation_tests::Request;
using speculation_tests::ShortSighted;
using speculation_tests::SomeRequests;
using ::testing::HasSubstr;

constexpr int kSlots = 4;
constexpr int kTreeDrafts = 15;

int NumPrompts() {
  const char* const text = std::getenv("REPRISE_SPECULATION_PROMPTS");
  int count = 200;
  if (text != nullptr) CHECK(absl::SimpleAtoi(text, &count)) << text;
  return (count + kSlots - 1) / kSlots * kSlots;
}

// Multiplies the state by one random matrix, the same in each pass.
class MatrixHeads : public DraftHeads {
 public:
  MatrixHeads(int64_t hidden_dim, c10::Device device) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal(0, 0.3f);
    std::vector<float> values;
    for (int64_t i = 0; i < kVocab * hidden_dim; ++i) values.push_back(normal(rng));
    weights_ = at::from_blob(values.data(), {hidden_dim, kVocab}, at::TensorOptions(at::kFloat))
                   .clone()
                   .to(device);
  }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    return HeadsOutput{.logits = at::matmul(step.hidden, weights_)};
  }

 private:
  at::Tensor weights_;
};

struct Drafts {
  Proposer proposer = Proposer::kNone;
  bool tree = false;
};

std::ostream& operator<<(std::ostream& out, const Drafts& drafts) {
  return out << "proposer " << static_cast<int>(drafts.proposer) << ", tree " << drafts.tree;
}

constexpr Drafts kAllDrafts[] = {{Proposer::kNone},        {Proposer::kNgram},
                                 {Proposer::kModel},       {Proposer::kHeads},
                                 {Proposer::kNone, true},  {Proposer::kNgram, true},
                                 {Proposer::kModel, true}, {Proposer::kHeads, true}};

ModelRunnerOptions OptionsOf(const Drafts& drafts, DraftHeads* heads) {
  ModelRunnerOptions options = Options(drafts.proposer);
  if (drafts.proposer == Proposer::kHeads) options.speculation.proposer = HeadsProposer{*heads};
  if (!drafts.tree) return options;
  options.speculation.shape = DraftShape::kTree;
  options.speculation.max_drafts = kTreeDrafts;
  options.speculation.graph_num_drafts = {4, kTreeDrafts};
  if (drafts.proposer == Proposer::kModel || drafts.proposer == Proposer::kHeads) {
    options.speculation.tree = {0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9};
  }
  return options;
}

// Returns drafts that a caller gives after a text of `length` tokens: a chain or a random tree. If
// its parent is right, a draft is right with `percent_right`.
SpeculationRow Given(std::mt19937& rng, const std::vector<int32_t>& want, size_t length, int count,
                     bool tree, int percent_right) {
  SpeculationRow row;
  std::vector<int> right_depth = {0};  // by node; -1: the node is wrong
  for (int i = 0; i < count; ++i) {
    const int parent = tree ? static_cast<int>(i - rng() % (i / 2 + 1)) : i;
    const int depth = right_depth[parent];
    const size_t place = length + std::max(depth, 0);
    const int32_t right = place < want.size() ? want[place] : 0;
    const bool is_right = depth >= 0 && static_cast<int>(rng() % 100) < percent_right;
    row.drafts.push_back(is_right ? right : (right + 1 + rng() % (kVocab - 1)) % kVocab);
    if (tree) row.parents.push_back(parent);
    right_depth.push_back(is_right ? depth + 1 : -1);
  }
  return row;
}

void ExpectPlainTexts(const LayeredModelOptions& model, const std::vector<Request>& requests,
                      const std::vector<std::vector<int32_t>>& want, const Drafts& drafts) {
  MatrixHeads heads(LayeredModel(model).spec().hidden_dim, model.device);
  auto made = SpeculationHarness::Create(OptionsOf(drafts, &heads), model,
                                         ShortSighted(model.device, model.seed));
  ASSERT_TRUE(made.ok()) << made.status();
  SpeculationHarness& harness = **made;
  std::mt19937 rng(7);
  const int most = drafts.tree ? kTreeDrafts : kChainDrafts;
  std::set<int> lengths;
  for (size_t first = 0; first < requests.size(); first += kSlots) {
    const auto begin = static_cast<int64_t>(first);
    const std::vector<Request> group(requests.begin() + begin, requests.begin() + begin + kSlots);
    const std::vector<std::vector<int32_t>> texts(want.begin() + begin,
                                                  want.begin() + begin + kSlots);
    // Two groups of slots cover all lengths of chains, one length per slot; the next two groups
    // assign the lengths to other slots. All drafts are wrong in the first group, right in the
    // second, and mixed in the next two; later groups combine each length with each case.
    const int index = static_cast<int>(first) / kSlots;
    constexpr int kPercents[] = {0, 100, 34, 67};
    const int percent_right = kPercents[(index % most + index / most) % 4];
    ExpectTexts(harness, group, texts, [&](int slot, int room) {
      const int num_drafts = 1 + (kSlots * index + index / 2 + slot) % most;
      const int count =
          std::min(room, rng() % 5 == 0 ? static_cast<int>(rng() % (most + 1)) : num_drafts);
      if (count == num_drafts) lengths.insert(num_drafts);
      SpeculationRow row = {.slot = slot, .num_drafts = count};
      if (drafts.proposer == Proposer::kNone) {
        row = Given(rng, texts[slot], harness.text(slot).size(), count, drafts.tree, percent_right);
        row.slot = slot;
      }
      return row;
    });
    for (int slot = 0; slot < kSlots; ++slot) harness.Leave(slot);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_THAT(lengths, testing::SizeIs(std::min<size_t>(most, requests.size())));
}

void ExpectPlainTextsOfAll(LayeredModelOptions model, bool serves_trees) {
  model.hidden = LayeredModelOptions::Hidden::kStream;
  std::vector<Request> requests;
  for (uint32_t seed = 100; static_cast<int>(requests.size()) < NumPrompts(); ++seed) {
    for (Request& request : SomeRequests(seed)) requests.push_back(std::move(request));
  }
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  for (const Drafts& drafts : kAllDrafts) {
    if (drafts.tree && !serves_trees) continue;
    SCOPED_TRACE(drafts);
    ExpectPlainTexts(model, requests, want, drafts);
  }
}

TEST_P(SpeculationSuite, ManyPromptsOfFullAttention) {
  ExpectPlainTextsOfAll(speculation_tests::TwoLayers(GetParam(), 1), /*serves_trees=*/true);
}

TEST_P(SpeculationSuite, ManyPromptsOfWindows) {
  ExpectPlainTextsOfAll(speculation_tests::Windows(GetParam(), 2), /*serves_trees=*/true);
}

TEST_P(SpeculationSuite, ManyPromptsOfLatents) {
  ExpectPlainTextsOfAll(speculation_tests::Latents(GetParam(), 3), /*serves_trees=*/true);
}

TEST_P(SpeculationSuite, ManyPromptsOfWindowsAndChunks) {
  ExpectPlainTextsOfAll(speculation_tests::WindowsAndChunks(GetParam(), 4), /*serves_trees=*/false);
}

// Runs steps of slot 0 until its context is full. Each step has the maximum number of drafts that
// fit, at most `most`. `want` is empty, or the expected text: given drafts are then mostly right.
void GrowToTheEnd(SpeculationHarness& harness, const Drafts& drafts, int most,
                  const std::vector<int32_t>& want) {
  std::mt19937 rng(9);
  harness.Join(0, {1, 2, 3}, {.temperature = 0.8f, .seed = 11});
  ASSERT_STEP(harness.Step({{.slot = 0}}));
  while (true) {
    const int length = static_cast<int>(harness.text(0).size());
    const int room = kMaxSeqLen - length;
    if (room < 0) break;
    SpeculationRow row = {.num_drafts = std::min(room, most)};
    if (drafts.proposer == Proposer::kNone) {
      row = Given(rng, want, length, row.num_drafts, drafts.tree, /*percent_right=*/80);
    }
    ASSERT_STEP(harness.Step({row}));
  }
  EXPECT_THAT(std::string(harness.Step({{.slot = 0}}).message()),
              HasSubstr("would be longer than max_seq_len"));
}

TEST_P(SpeculationSuite, SequencesMayGrowToTheEndOfTheContext) {
  for (LayeredModelOptions model :
       {speculation_tests::TwoLayers(GetParam(), 5), speculation_tests::Windows(GetParam(), 5),
        speculation_tests::Latents(GetParam(), 5),
        speculation_tests::WindowsAndChunks(GetParam(), 5)}) {
    model.hidden = LayeredModelOptions::Hidden::kStream;
    auto plain = SpeculationHarness::Create(Options(Proposer::kNone), model);
    ASSERT_TRUE(plain.ok()) << plain.status();
    GrowToTheEnd(**plain, {}, /*most=*/0, {});
    const std::vector<int32_t>& want = (*plain)->text(0);
    ASSERT_EQ(want.size(), static_cast<size_t>(kMaxSeqLen) + 1);
    const bool has_chunks = model.layers[1].chunk_size.has_value();
    for (const Drafts& drafts : kAllDrafts) {
      if (drafts.tree && has_chunks) continue;
      SCOPED_TRACE(testing::Message() << drafts << ", chunks " << has_chunks << ", head dim "
                                      << model.layers[0].params.head_dim_qk);
      MatrixHeads heads(LayeredModel(model).spec().hidden_dim, model.device);
      // The model itself is the draft model: many tokens per step, up to the last position.
      auto harness = SpeculationHarness::Create(OptionsOf(drafts, &heads), model, model);
      ASSERT_TRUE(harness.ok()) << harness.status();
      GrowToTheEnd(**harness, drafts, drafts.tree ? kTreeDrafts : kChainDrafts, want);
      EXPECT_EQ((*harness)->text(0), want);
    }
  }
}

// Nodes of a tree attend to their path through masks. With batch invariance, the results are
// bitwise identical to those of a row of one token.
TEST_P(SpeculationSuite, BFloat16OutputWithTreesMatchesPlainDecoding) {
  for (LayeredModelOptions model :
       {speculation_tests::TwoLayers(GetParam(), 6), speculation_tests::Windows(GetParam(), 6),
        speculation_tests::Latents(GetParam(), 6)}) {
    model.dtype = DType::kBFloat16;
    ModelRunnerOptions plain = Options(Proposer::kNone);
    plain.device.batch_invariance = BatchInvariance::kOn;
    plain.speculation = {};
    const std::vector<Request> requests = SomeRequests(33);
    const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests, plain);
    for (const Drafts& drafts : {Drafts{Proposer::kNone, true}, Drafts{Proposer::kModel, true}}) {
      SCOPED_TRACE(testing::Message()
                   << drafts << ", window " << model.layers[0].params.window_left.value_or(-1)
                   << ", head dim " << model.layers[0].params.head_dim_qk);
      ModelRunnerOptions options = OptionsOf(drafts, nullptr);
      options.device.batch_invariance = BatchInvariance::kOn;
      auto harness = SpeculationHarness::Create(options, model, model);
      ASSERT_TRUE(harness.ok()) << harness.status();
      std::mt19937 rng(14);
      ExpectTexts(**harness, requests, want, [&](int slot, int room) {
        const int count = std::min(room, static_cast<int>(rng() % (1 + kTreeDrafts)));
        SpeculationRow row = {.num_drafts = count};
        if (drafts.proposer == Proposer::kNone) {
          row = Given(rng, want[slot], (*harness)->text(slot).size(), count, /*tree=*/true,
                      /*percent_right=*/75);
        }
        row.slot = slot;
        return row;
      });
    }
  }
}

TEST_P(SpeculationSuite, ARowMayHave16Drafts) {
  const LayeredModelOptions model = speculation_tests::TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(31);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  for (const Proposer proposer : {Proposer::kNone, Proposer::kNgram, Proposer::kModel}) {
    SCOPED_TRACE(Drafts{proposer});
    ModelRunnerOptions options = Options(proposer);
    options.speculation.max_drafts = kMaxDrafts;
    options.speculation.graph_num_drafts = {4, kMaxDrafts};
    auto harness = SpeculationHarness::Create(options, model, model);
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::mt19937 rng(12);
    int max_new = 0;
    ExpectTexts(**harness, requests, want, [&](int slot, int room) {
      for (const int num_new : (*harness)->num_new()) max_new = std::max(max_new, num_new);
      const int count = std::min(room, 9 + static_cast<int>(rng() % (kMaxDrafts - 8)));
      SpeculationRow row = {.slot = slot, .num_drafts = count};
      if (proposer == Proposer::kNone) {
        row = Given(rng, want[slot], (*harness)->text(slot).size(), count, /*tree=*/false,
                    /*percent_right=*/slot == 0 ? 100 : 90);
        row.slot = slot;
      }
      return row;
    });
    EXPECT_GE(max_new, proposer == Proposer::kNgram ? 1 : 10);
  }
}

// Proposes a different token for each node after the newest token.
class Counting : public Drafter {
 public:
  absl::Status Propose(const DraftStep& step) override {
    for (int r = 0; r < step.num_rows; ++r) {
      int32_t* const tokens = step.arrays.token_ids + step.arrays.query_start_loc[r];
      for (int i = 1; i <= step.arrays.num_proposed[r]; ++i) {
        tokens[i] = (tokens[0] + 7 * i) % step.vocab_size;
      }
    }
    return absl::OkStatus();
  }
};

TEST_P(SpeculationSuite, CustomDrafterMayProposeATree) {
  if (!GetParam().is_cpu()) GTEST_SKIP() << "this one runs on the host";
  const LayeredModelOptions model = speculation_tests::TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(32);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  Counting counting;
  ModelRunnerOptions options = Options(Proposer::kCustom);
  options.speculation.shape = DraftShape::kTree;
  options.speculation.proposer = CustomProposer{counting};
  options.speculation.max_drafts = kTreeDrafts;
  options.speculation.graph_num_drafts = {4, kTreeDrafts};
  // Twelve drafts may follow the newest token, and one draft may follow each of the first three.
  options.speculation.tree = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3};
  auto harness = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  int num_accepted = 0;
  ExpectTexts(**harness, requests, want, [&](int slot, int room) {
    for (const int num_new : (*harness)->num_new()) num_accepted += num_new - 1;
    return SpeculationRow{.slot = slot, .num_drafts = std::min(kTreeDrafts, room)};
  });
  // Each step tries twelve of 61 tokens.
  EXPECT_GT(num_accepted, 0);
}

}  // namespace
}  // namespace reprise
