#include "reprise/runner/testing/speculation_suite.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/runner/speculation/drafter.h"
#include "reprise/runner/testing/speculation_harness.h"
#include "reprise/runner/testing/speculation_texts.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SpeculationSuite);

namespace {

using speculation_tests::ExpectTexts;
using speculation_tests::kChainDrafts;
using speculation_tests::kMaxSeqLen;
using speculation_tests::kNumNew;
using speculation_tests::kVocab;
using speculation_tests::Latents;
using speculation_tests::Options;
using speculation_tests::PlainTexts;
using speculation_tests::RandomPrompt;
using speculation_tests::Request;
using speculation_tests::ShortSighted;
using speculation_tests::SomeRequests;
using speculation_tests::TwoLayers;
using speculation_tests::Windows;
using speculation_tests::WindowsAndChunks;
using ::testing::HasSubstr;
using Kind = GraphDecision::Kind;
using speculation_tests::Proposer;
using speculation_tests::ProposerOf;

// Proposes the newest token repeatedly.
class Repeat : public Drafter {
 public:
  absl::Status Propose(const DraftStep& step) override {
    ++num_calls;
    for (int r = 0; r < step.num_rows; ++r) {
      const int first = step.arrays.query_start_loc[r];
      for (int i = 0; i < step.arrays.num_proposed[r]; ++i) {
        step.arrays.token_ids[first + 1 + i] = step.arrays.token_ids[first];
      }
    }
    return absl::OkStatus();
  }
  int num_calls = 0;
};

TEST_P(SpeculationSuite, OutputWithNgramsOrADraftModelMatchesPlainDecoding) {
  for (const bool full : {true, false}) {
    const LayeredModelOptions model =
        full ? TwoLayers(GetParam(), 1) : WindowsAndChunks(GetParam(), 1);
    const std::vector<Request> requests = SomeRequests(7);
    const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
    for (const Proposer proposer : {Proposer::kNgram, Proposer::kModel}) {
      SCOPED_TRACE(testing::Message()
                   << "full " << full << ", proposer " << static_cast<int>(proposer));
      auto harness =
          SpeculationHarness::Create(Options(proposer), model, TwoLayers(GetParam(), /*seed=*/2));
      ASSERT_TRUE(harness.ok()) << harness.status();
      std::mt19937 rng(3);
      for (int most : {1, 2, 5, kChainDrafts}) {
        ExpectTexts(**harness, requests, want, [&](int slot, int room) {
          // Some rows have fewer drafts, some have no drafts.
          const int count = rng() % 4 == 0 ? static_cast<int>(rng() % (most + 1)) : most;
          return SpeculationRow{.slot = slot, .num_drafts = std::min(count, room)};
        });
        for (int slot = 0; slot < 4; ++slot) (*harness)->Leave(slot);
      }
    }
  }
}

TEST_P(SpeculationSuite, OutputWithGivenDraftsMatchesPlainDecoding) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(8);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  auto harness = SpeculationHarness::Create(Options(Proposer::kNone), model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::mt19937 rng(4);
  for (const int percent_right : {0, 50, 90, 100}) {
    SCOPED_TRACE(testing::Message() << percent_right << " % are right");
    int num_steps = 0;
    ExpectTexts(**harness, requests, want, [&](int slot, int room) {
      SpeculationRow row{.slot = slot};
      num_steps += slot == 0;
      const size_t length = (*harness)->text(slot).size();
      for (int i = 0; i < std::min(4, room); ++i) {
        const int32_t right = length + i < want[slot].size() ? want[slot][length + i] : 0;
        const bool is_right = static_cast<int>(rng() % 100) < percent_right;
        row.drafts.push_back(is_right ? right : (right + 1 + rng() % (kVocab - 1)) % kVocab);
      }
      return row;
    });
    if (percent_right == 0) {
      EXPECT_EQ(num_steps, kNumNew - 1);
    }
    if (percent_right == 100) {
      EXPECT_EQ(num_steps, (kNumNew - 1 + 4) / 5);
    }
    for (int slot = 0; slot < 4; ++slot) (*harness)->Leave(slot);
  }
}

constexpr int kMaxNodes = 20;  // drafts of the trees below

ModelRunnerOptions TreeOptions(Proposer proposer) {
  ModelRunnerOptions options = Options(proposer);
  options.speculation = {.max_drafts = kMaxNodes,
                         .shape = DraftShape::kTree,
                         .proposer = ProposerOf(proposer),
                         .graph_num_drafts = {4, kMaxNodes}};
  return options;
}

// Returns a random tree of `num_drafts` drafts after a text of `length` tokens. A draft whose
// parent is right is right with `percent_right`.
SpeculationRow RandomTree(std::mt19937& rng, int num_drafts, int percent_right,
                          const std::vector<int32_t>& want, size_t length) {
  SpeculationRow row;
  std::vector<int> right_depth = {0};  // by node; -1: the node is wrong
  for (int i = 0; i < num_drafts; ++i) {
    const int parent = static_cast<int>(rng() % 3 == 0 ? rng() % (i + 1) : i - rng() % (i / 2 + 1));
    const int depth = right_depth[parent];
    const size_t place = length + (depth < 0 ? 0 : depth);
    const int32_t right = place < want.size() ? want[place] : 0;
    const bool is_right = depth >= 0 && static_cast<int>(rng() % 100) < percent_right;
    row.parents.push_back(parent);
    row.drafts.push_back(is_right ? right : (right + 1 + rng() % (kVocab - 1)) % kVocab);
    right_depth.push_back(is_right ? depth + 1 : -1);
  }
  return row;
}

TEST_P(SpeculationSuite, OutputWithGivenTreesMatchesPlainDecoding) {
  const LayeredModelOptions models[] = {TwoLayers(GetParam(), 1), Windows(GetParam(), 1),
                                        Latents(GetParam(), 1)};
  for (const LayeredModelOptions& model : models) {
    const std::vector<Request> requests = SomeRequests(8);
    const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
    auto harness = SpeculationHarness::Create(TreeOptions(Proposer::kNone), model);
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::mt19937 rng(5);
    for (const int percent_right : {0, 60, 100}) {
      SCOPED_TRACE(testing::Message()
                   << "model " << &model - models << ", " << percent_right << " % are right");
      int num_steps = 0;
      ExpectTexts(**harness, requests, want, [&](int slot, int room) {
        num_steps += slot == 0;
        const size_t length = (*harness)->text(slot).size();
        // Some rows are chains, some have fewer drafts, some have no drafts.
        const int most = std::min(room, rng() % 3 == 0 ? static_cast<int>(rng() % 6) : kMaxNodes);
        SpeculationRow row = RandomTree(rng, most, percent_right, want[slot], length);
        if (rng() % 5 == 0) row.parents.clear();
        row.slot = slot;
        return row;
      });
      if (percent_right == 0) {
        EXPECT_EQ(num_steps, kNumNew - 1);
      }
      if (percent_right == 100) {
        EXPECT_LT(num_steps, kNumNew / 2);
      }
      for (int slot = 0; slot < 4; ++slot) (*harness)->Leave(slot);
    }
  }
}

// Only the last of 64 nodes is right. All nodes before it follow other nodes or are wrong.
TEST_P(SpeculationSuite, ATreeMayHave64Nodes) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  std::vector<Request> requests = SomeRequests(14);
  requests.resize(1);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  ModelRunnerOptions options = TreeOptions(Proposer::kNone);
  options.max_num_seqs = 1;
  options.graphs.sizes = {1};
  options.speculation.max_drafts = kMaxTreeDrafts;
  options.speculation.graph_num_drafts = {kMaxTreeDrafts};
  auto harness = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  int num_steps = 0;
  ExpectTexts(**harness, requests, want, [&](int, int room) {
    SpeculationRow row;
    const size_t length = (*harness)->text(0).size();
    if (room < kMaxTreeDrafts) return row;
    ++num_steps;
    const int32_t right = length < want[0].size() ? want[0][length] : 0;
    row.drafts.assign(kMaxTreeDrafts, (right + 1) % kVocab);
    row.parents.assign(kMaxTreeDrafts, 0);
    row.drafts.back() = right;
    return row;
  });
  EXPECT_GT(num_steps, 2);
}

TEST_P(SpeculationSuite, TreeReplaysMatchEagerSteps) {
  const LayeredModelOptions model = Windows(GetParam(), 1);
  std::vector<Request> requests = SomeRequests(15);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  ModelRunnerOptions options = TreeOptions(Proposer::kNone);
  options.debug.replay_check = ReplayCheck::kEveryReplay;
  auto harness = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::mt19937 rng(6);
  ExpectTexts(**harness, requests, want, [&](int slot, int room) {
    SpeculationRow row =
        RandomTree(rng, std::min(room, kMaxNodes), 80, want[slot], (*harness)->text(slot).size());
    row.slot = slot;
    return row;
  });
}

// Three drafts; two drafts after each of these; and one draft after each of those.
ModelRunnerOptions ThreeLevels() {
  ModelRunnerOptions options = TreeOptions(Proposer::kModel);
  options.speculation.tree = {0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9};
  options.speculation.max_drafts = 15;
  options.speculation.graph_num_drafts = {4, 15};
  return options;
}

TEST_P(SpeculationSuite, OutputWithDraftModelTreesMatchesPlainDecoding) {
  for (const bool full : {true, false}) {
    const LayeredModelOptions model = full ? TwoLayers(GetParam(), 1) : Windows(GetParam(), 1);
    const std::vector<Request> requests = SomeRequests(16);
    const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
    auto harness = SpeculationHarness::Create(ThreeLevels(), model, ShortSighted(GetParam(), 1));
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::mt19937 rng(3);
    for (const bool all : {true, false}) {
      SCOPED_TRACE(testing::Message() << "full " << full << ", all " << all);
      ExpectTexts(**harness, requests, want, [&](int slot, int room) {
        // The first drafts of a tree form a tree.
        const int count = all ? 15 : static_cast<int>(rng() % 16);
        return SpeculationRow{.slot = slot, .num_drafts = std::min(count, room)};
      });
      for (int slot = 0; slot < 4; ++slot) (*harness)->Leave(slot);
    }
  }
}

TEST_P(SpeculationSuite, TreesOfAnEqualDraftModelAreAcceptedToTheLastLevel) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(17);
  auto harness = SpeculationHarness::Create(ThreeLevels(), model, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  ASSERT_STEP((*harness)->Step(rows));
  for (SpeculationRow& row : rows) row.num_drafts = 15;
  for (int step = 0; step < 6; ++step) {
    ASSERT_STEP((*harness)->Step(rows));
    EXPECT_THAT((*harness)->num_new(), testing::Each(4)) << "step " << step;
  }
  // Levels with one node; nodes with one draft and with several drafts after them.
  ModelRunnerOptions options = ThreeLevels();
  options.speculation.tree = {0, 1, 1, 2, 3, 2};
  options.speculation.max_drafts = 6;
  options.speculation.graph_num_drafts = {6};
  auto narrow = SpeculationHarness::Create(options, model, model);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  for (int slot = 0; slot < 4; ++slot) {
    (*narrow)->Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows[slot].num_drafts = 0;
  }
  ASSERT_STEP((*narrow)->Step(rows));
  for (SpeculationRow& row : rows) row.num_drafts = 6;
  for (int step = 0; step < 6; ++step) {
    ASSERT_STEP((*narrow)->Step(rows));
    EXPECT_THAT((*narrow)->num_new(), testing::Each(4)) << "step " << step;
  }
  for (int slot = 0; slot < 4; ++slot) EXPECT_EQ((*narrow)->text(slot), (*harness)->text(slot));

  // Levels may be partial: 5 drafts are the first level and two drafts after the first draft.
  for (SpeculationRow& row : rows) row.num_drafts = 5;
  ASSERT_STEP((*harness)->Step(rows));
  EXPECT_THAT((*harness)->num_new(), testing::Each(3));
}

// A chain has one draft per level, a tree has several.
TEST_P(SpeculationSuite, TreesAcceptMoreThanChainsOfTheirDepth) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const LayeredModelOptions draft = ShortSighted(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(18);
  int num_new[2] = {};
  for (const bool tree : {false, true}) {
    auto harness =
        SpeculationHarness::Create(tree ? ThreeLevels() : Options(Proposer::kModel), model, draft);
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::vector<SpeculationRow> rows;
    for (int slot = 0; slot < 4; ++slot) {
      (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
      rows.push_back({.slot = slot});
    }
    ASSERT_STEP((*harness)->Step(rows));
    for (SpeculationRow& row : rows) row.num_drafts = tree ? 15 : 3;
    for (int step = 0; step < 12; ++step) {
      ASSERT_STEP((*harness)->Step(rows));
      for (const int count : (*harness)->num_new()) num_new[tree] += count;
    }
  }
  EXPECT_GT(num_new[1], num_new[0]);
  EXPECT_GT(num_new[0], 12 * 4);
}

TEST_P(SpeculationSuite, StepsWithTreesMayBeLaunchedWithUnknownLengths) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(19);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  ModelRunnerOptions options = ThreeLevels();
  options.max_steps_in_flight = 3;
  auto harness = SpeculationHarness::Create(options, model, ShortSighted(GetParam(), 1));
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  ASSERT_STEP((*harness)->Launch(rows));
  for (SpeculationRow& row : rows) row.num_drafts = 9;
  ASSERT_STEP((*harness)->Launch(rows));
  for (int i = 0; i < 8; ++i) {
    ASSERT_STEP((*harness)->Launch(rows));
    ASSERT_STEP((*harness)->Await());
  }
  ASSERT_STEP((*harness)->Await());
  ASSERT_STEP((*harness)->Await());
  for (int slot = 0; slot < 4; ++slot) {
    std::vector<int32_t> text = (*harness)->text(slot);
    const size_t length = std::min(text.size(), want[slot].size());
    EXPECT_GE(length, requests[slot].prompt.size() + 10);
    text.resize(length);
    EXPECT_EQ(text, std::vector<int32_t>(want[slot].begin(), want[slot].begin() + length));
  }
}

TEST_P(SpeculationSuite, RejectsBadTrees) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  auto made = SpeculationHarness::Create(TreeOptions(Proposer::kNone), model);
  ASSERT_TRUE(made.ok()) << made.status();
  auto chains = SpeculationHarness::Create(Options(Proposer::kNone), model);
  ASSERT_TRUE(chains.ok()) << chains.status();
  for (auto* harness : {made->get(), chains->get()}) {
    harness->Join(0, {1, 2, 3});
    ASSERT_STEP(harness->Step({{.slot = 0}}));
  }
  const std::vector<int32_t> drafts = {1, 2};
  const auto message = [&](SpeculationHarness& harness, const std::vector<int32_t>& parents,
                           bool has_drafts = true) {
    ScheduledRow row = {.parents = parents};
    if (has_drafts) row.drafts = drafts;
    return std::string(harness.runner().Launch({.rows = {&row, 1}}).status().message());
  };
  EXPECT_THAT(message(**made, {0}), HasSubstr("must have one entry per draft: expected 2, got 1"));
  EXPECT_THAT(message(**made, {0, 1}, false), HasSubstr("expected 0, got 2"));
  EXPECT_THAT(message(**made, {0, 2}), HasSubstr("parents[1] of slot 0 must be an earlier node"));
  EXPECT_THAT(message(**made, {-1, 0}), HasSubstr("parents[0]"));
  EXPECT_THAT(message(**chains, {0, 0}), HasSubstr("DraftShape::kTree"));
  ASSERT_STEP((*made)->Step({{.slot = 0, .drafts = {1, 2}, .parents = {0, 0}}}));

  const auto refusal = [&](const SpeculationOptions& speculation, const LayeredModelOptions& spec) {
    ModelRunnerOptions options = Options(Proposer::kNone);
    options.speculation = speculation;
    return std::string(SpeculationHarness::Create(options, spec).status().message());
  };
  const DraftShape tree = DraftShape::kTree;
  EXPECT_THAT(refusal({.max_drafts = 64, .shape = tree}, model), HasSubstr("0 to 63, got 64"));
  EXPECT_THAT(refusal({.max_drafts = 2, .tree = {0, 0}}, model), HasSubstr("without DraftShape"));
  EXPECT_THAT(refusal({.max_drafts = 2, .shape = tree, .tree = {0}}, model),
              HasSubstr("number of entries of speculation.tree: expected 2"));
  EXPECT_THAT(refusal({.max_drafts = 2, .shape = tree, .tree = {0, 2}}, model),
              HasSubstr("speculation.tree[1]: expected 0 to 1, got 2"));
  EXPECT_THAT(refusal({.max_drafts = 3, .shape = tree, .tree = {0, 1, 0}}, model),
              HasSubstr("level by level"));
  EXPECT_THAT(refusal({.max_drafts = 17, .shape = tree, .proposer = NgramProposer{}}, model),
              HasSubstr("of a proposer without a tree: expected 0 to 16, got 17"));
  EXPECT_THAT(
      refusal({.max_drafts = 2, .shape = tree, .tree = {0, 0}, .proposer = NgramProposer{}}, model),
      HasSubstr("proposes chains"));
  EXPECT_THAT(refusal({.max_drafts = 2, .shape = tree}, WindowsAndChunks(GetParam(), 1)),
              HasSubstr("requires layers without chunks"));
}

// A draft model that equals the model has all drafts accepted at any temperature, because both use
// the same noise.
TEST_P(SpeculationSuite, EqualDraftModelIsAcceptedAtAnyTemperature) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(9);
  auto harness = SpeculationHarness::Create(Options(Proposer::kModel), model, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::vector<SpeculationRow> rows;
  for (int slot = 0; slot < 4; ++slot) {
    (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
    rows.push_back({.slot = slot});
  }
  ASSERT_STEP((*harness)->Step(rows));
  for (SpeculationRow& row : rows) row.num_drafts = 5;
  for (int step = 0; step < 6; ++step) {
    ASSERT_STEP((*harness)->Step(rows));
    EXPECT_THAT((*harness)->num_new(), testing::Each(6)) << "step " << step;
  }
}

// The draft model reads tokens that were decoded without drafts later, a few per step.
TEST_P(SpeculationSuite, DraftModelCatchesUpWithTokensDecodedWithoutDrafts) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(10);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  auto harness = SpeculationHarness::Create(Options(Proposer::kModel), model, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  (*harness)->Join(1, requests[1].prompt, requests[1].sampling);
  for (int i = 0; i < 12; ++i) ASSERT_STEP((*harness)->Step({{.slot = 1}}));
  // It lags by at least 11 tokens and reads 3 per step.
  std::vector<int> accepted;
  while ((*harness)->text(1).size() < want[1].size()) {
    ASSERT_STEP((*harness)->Step({{.slot = 1, .num_drafts = 2}}));
    accepted.push_back((*harness)->num_new()[0] - 1);
  }
  std::vector<int32_t> text = (*harness)->text(1);
  text.resize(want[1].size());
  EXPECT_EQ(text, want[1]);
  EXPECT_EQ(accepted.back(), 2);
  EXPECT_LE(std::count(accepted.begin(), accepted.end(), 0), 8);
}

// Steps have chunks of prompts, rows with drafts and plain rows. Slot 1 has no drafts.
TEST_P(SpeculationSuite, PromptsAndDraftsReplayOneGraph) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(11);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  struct Case {
    ModelRunnerOptions options;
    int num_drafts;
    int num_new;  // per row with drafts; 0: any
  };
  for (Case c : {Case{Options(Proposer::kNgram), 3, 0}, Case{Options(Proposer::kModel), 3, 4},
                 Case{ThreeLevels(), 15, 4}}) {
    SCOPED_TRACE(testing::Message()
                 << c.options.speculation.proposer.index() << ", " << c.num_drafts);
    c.options.graphs.mixed = MixedGraphs::kOn;
    c.options.debug.replay_check = ReplayCheck::kEveryReplay;
    auto harness = SpeculationHarness::Create(c.options, model, model);
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::vector<SpeculationRow> rows;
    const auto expect_new = [&](size_t num_decodes) {
      for (size_t r = 0; r < num_decodes; ++r) {
        const int num_new = (*harness)->num_new()[r];
        EXPECT_EQ(num_new, r == 1 ? 1 : c.num_new == 0 ? num_new : c.num_new) << "row " << r;
      }
    };
    for (int slot = 0; slot < 4; ++slot) {
      (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
      for (SpeculationRow& row : rows) row.num_drafts = row.slot == 1 ? 0 : c.num_drafts;
      rows.push_back({.slot = slot});
      ASSERT_STEP((*harness)->Step(rows));
      const GraphDecision& decision = (*harness)->decision();
      ASSERT_EQ(decision.kind, Kind::kReplay) << decision;
      if (slot > 0) {
        EXPECT_GE(decision.key.num_drafts, c.num_drafts) << decision;
        EXPECT_EQ(decision.key.max_query_len, decision.key.padded_num_tokens) << decision;
      }
      expect_new(rows.size() - 1);
    }
    rows.back().num_drafts = c.num_drafts;
    for (int i = 0; i < 3; ++i) {
      ASSERT_STEP((*harness)->Step(rows));
      EXPECT_EQ((*harness)->decision().kind, Kind::kReplay);
      expect_new(rows.size());
    }
    for (int slot = 0; slot < 4; ++slot) {
      std::vector<int32_t> text = (*harness)->text(slot);
      ASSERT_LE(text.size(), want[slot].size());
      EXPECT_EQ(text, std::vector<int32_t>(want[slot].begin(), want[slot].begin() + text.size()));
    }
  }
}

// With more tokens than the largest mixed graph, the step runs eagerly.
TEST_P(SpeculationSuite, LongPromptsWithDraftsRunEagerly) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  std::vector<Request> requests = SomeRequests(20);
  requests.resize(2);
  std::mt19937 rng(21);
  requests[1].prompt = RandomPrompt(rng, 30);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  ModelRunnerOptions options = Options(Proposer::kModel);
  options.graphs.mixed = MixedGraphs::kOn;
  options.graphs.mixed_tokens = {32};
  auto harness = SpeculationHarness::Create(options, model, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  (*harness)->Join(0, requests[0].prompt, requests[0].sampling);
  ASSERT_STEP((*harness)->Step({{.slot = 0}}));
  (*harness)->Join(1, requests[1].prompt, requests[1].sampling);
  std::vector<SpeculationRow> rows = {{.slot = 0, .num_drafts = 4}, {.slot = 1}};
  ASSERT_STEP((*harness)->Step(rows));
  EXPECT_EQ((*harness)->decision().reason, EagerReason::kDraftsAmongTokens);
  rows[1].num_drafts = 4;
  for (int i = 0; i < 3; ++i) {
    ASSERT_STEP((*harness)->Step(rows));
    EXPECT_THAT((*harness)->num_new(), testing::Each(5));
  }
  for (int slot = 0; slot < 2; ++slot) {
    const std::vector<int32_t>& text = (*harness)->text(slot);
    EXPECT_EQ(text, std::vector<int32_t>(want[slot].begin(), want[slot].begin() + text.size()));
  }
}

TEST_P(SpeculationSuite, StepsMayBeLaunchedWithUnknownLengths) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(12);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  for (const Proposer proposer : {Proposer::kNgram, Proposer::kModel}) {
    ModelRunnerOptions options = Options(proposer);
    options.max_steps_in_flight = 3;
    auto harness = SpeculationHarness::Create(options, model, TwoLayers(GetParam(), 2));
    ASSERT_TRUE(harness.ok()) << harness.status();
    std::vector<SpeculationRow> rows;
    for (int slot = 0; slot < 4; ++slot) {
      (*harness)->Join(slot, requests[slot].prompt, requests[slot].sampling);
      rows.push_back({.slot = slot});
    }
    ASSERT_STEP((*harness)->Launch(rows));
    for (SpeculationRow& row : rows) row.num_drafts = 3;
    ASSERT_STEP((*harness)->Launch(rows));
    for (int i = 0; i < 10; ++i) {
      ASSERT_STEP((*harness)->Launch(rows));
      ASSERT_STEP((*harness)->Await());
    }
    ASSERT_STEP((*harness)->Await());
    ASSERT_STEP((*harness)->Await());
    for (int slot = 0; slot < 4; ++slot) {
      std::vector<int32_t> text = (*harness)->text(slot);
      const size_t length = std::min(text.size(), want[slot].size());
      EXPECT_GE(length, requests[slot].prompt.size() + 12);
      text.resize(length);
      EXPECT_EQ(text, std::vector<int32_t>(want[slot].begin(), want[slot].begin() + length));
    }
  }
}

TEST_P(SpeculationSuite, ReplaysMatchEagerSteps) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  ModelRunnerOptions options = Options(Proposer::kModel);
  options.debug.replay_check = ReplayCheck::kEveryReplay;
  auto harness = SpeculationHarness::Create(options, model, TwoLayers(GetParam(), 2));
  ASSERT_TRUE(harness.ok()) << harness.status();
  (*harness)->Join(0, {1, 2, 3, 4, 5});
  ASSERT_STEP((*harness)->Step({{.slot = 0}}));
  for (int i = 0; i < 5; ++i) ASSERT_STEP((*harness)->Step({{.slot = 0, .num_drafts = 4}}));
}

TEST_P(SpeculationSuite, CallsTheCustomDrafter) {
  if (!GetParam().is_cpu()) GTEST_SKIP() << "this one runs on the host";
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const std::vector<Request> requests = SomeRequests(13);
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  Repeat repeat;
  ModelRunnerOptions options = Options(Proposer::kCustom);
  options.speculation.proposer = CustomProposer{repeat};
  auto harness = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(harness.ok()) << harness.status();
  ExpectTexts(**harness, requests, want, [&](int slot, int room) {
    return SpeculationRow{.slot = slot, .num_drafts = std::min(2, room)};
  });
  EXPECT_GT(repeat.num_calls, 0);
}

// Stores the addresses of the histories and the stream of the step.
class Reader : public Drafter {
 public:
  absl::Status Propose(const DraftStep& step) override {
    history = step.slots.history;
    stream = step.stream;
    return absl::OkStatus();
  }
  std::vector<int32_t> Read(int slot, int count, c10::Device device) const {
    const at::Tensor row =
        at::from_blob(history.row(slot), {count}, at::TensorOptions(device).dtype(at::kInt)).cpu();
    return {row.data_ptr<int32_t>(), row.data_ptr<int32_t>() + count};
  }
  TokenHistory history;
  CUstream_st* stream = nullptr;
};

// Blocks computed by another sequence include their tokens: in a prefix, in a fork that copies a
// partly shared block, after a swap, and for accepted drafts of a tree.
TEST_P(SpeculationSuite, HistoriesIncludeTokensOfBlocksComputedByOtherSequences) {
  for (const bool tree : {false, true}) {
    SCOPED_TRACE(testing::Message() << "tree " << tree);
    const LayeredModelOptions model = TwoLayers(GetParam(), 1);
    Reader reader;
    ModelRunnerOptions options = Options(Proposer::kCustom);
    if (tree) options.speculation.shape = DraftShape::kTree;
    options.speculation.proposer = CustomProposer{reader};
    options.cache.swap = NumBlocks{9};
    auto made = SpeculationHarness::Create(options, model);
    ASSERT_TRUE(made.ok()) << made.status();
    SpeculationHarness& harness = **made;
    Request request = SomeRequests(22)[1];
    request.prompt = {5, 6, 7, 8, 9, 10, 11};
    const std::vector<int32_t> want = PlainTexts(model, {request})[0];
    harness.Join(0, request.prompt, request.sampling);
    ASSERT_STEP(harness.Step({{.slot = 0}}));
    ASSERT_STEP(harness.Step({{.slot = 0, .num_drafts = 2}}));  // right or wrong drafts
    EXPECT_EQ(reader.stream != nullptr, GetParam().is_cuda());
    const size_t length = harness.text(0).size();
    SpeculationRow given = {.slot = 0};
    if (tree) {  // the path is nodes 2 and 3
      given.drafts = {(want[length] + 1) % kVocab, want[length], want[length + 1]};
      given.parents = {0, 0, 2};
    } else {
      given.drafts = {want[length], want[length + 1], (want[length + 2] + 1) % kVocab};
    }
    ASSERT_STEP(harness.Step({given}));
    ASSERT_EQ(harness.num_new()[0], 3);
    const std::vector<int32_t> text = harness.text(0);
    const int num_known = static_cast<int>(text.size()) - 1;  // tokens with keys
    ASSERT_GE(num_known, 10);

    ModelRunner& runner = harness.runner();
    const int first = 1 + harness.runner().shape().max_blocks();  // blocks of slot 1 only
    // Slot 1 shares two blocks and copies the third. Slot 2 swaps in all blocks from the host.
    const SlotJoin joins[] = {
        {.slot = SlotId(1), .seq_len = 10, .prompt_len = 12},
        {.slot = SlotId(2), .seq_len = num_known, .prompt_len = num_known + 1}};
    std::vector<BlockTableUpdate> updates = {{.slot = SlotId(1), .column = 0, .block = BlockId(1)},
                                             {.slot = SlotId(1), .column = 1, .block = BlockId(2)}};
    for (int column = 2; column < 5; ++column) {
      updates.push_back({.slot = SlotId(1), .column = column, .block = BlockId(first + column)});
    }
    std::vector<BlockCopy> outs, ins;
    for (int column = 0; column * options.cache.block_size <= num_known; ++column) {
      const int host = 1 + column;
      const int block = first + 20 + column;
      outs.push_back({.src = 1 + column, .dst = host});
      ins.push_back({.src = host, .dst = block});
      updates.push_back({.slot = SlotId(2), .column = column, .block = BlockId(block)});
    }
    const BlockCopy copies[] = {{.src = 3, .dst = first + 2}};
    const std::vector<int32_t> rest = {text[10], 1};
    const std::vector<int32_t> next = {text[num_known]};
    const ScheduledRow rows[] = {{.slot = SlotId(0), .num_drafts = 1},
                                 {.slot = SlotId(1), .tokens = rest},
                                 {.slot = SlotId(2), .tokens = next}};
    const auto result = runner.Step({.joins = joins,
                                     .updates = updates,
                                     .swap_outs = outs,
                                     .swap_ins = ins,
                                     .copies = copies,
                                     .rows = rows});
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<int32_t> fork(text.begin(), text.begin() + 11);
    fork.push_back(1);
    EXPECT_EQ(reader.Read(1, 12, runner.device()), fork);
    EXPECT_EQ(reader.Read(2, num_known + 1, runner.device()), text);
  }
}

TEST_P(SpeculationSuite, RejectsBadDraftsAndChangesNothing) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  ModelRunnerOptions options = Options(Proposer::kNgram);
  options.max_steps_in_flight = 2;
  auto made = SpeculationHarness::Create(options, model);
  ASSERT_TRUE(made.ok()) << made.status();
  SpeculationHarness& harness = **made;
  harness.Join(0, {1, 2, 3});
  ASSERT_STEP(harness.Step({{.slot = 0}}));
  ModelRunner& runner = harness.runner();
  const auto message = [&](const ScheduledRow& row) {
    const auto ticket = runner.Launch({.rows = {&row, 1}});
    EXPECT_EQ(ticket.status().code(), absl::StatusCode::kInvalidArgument) << ticket.status();
    return std::string(ticket.status().message());
  };
  const std::vector<int32_t> tokens = {1, 2};
  const std::vector<int32_t> unknown = {kVocab};
  const std::vector<int32_t> many(kChainDrafts + 1, 0);
  EXPECT_THAT(message({.num_drafts = kChainDrafts + 1}), HasSubstr("more than max_drafts"));
  EXPECT_THAT(message({.num_drafts = 2147483647}), HasSubstr("more than max_drafts"));
  EXPECT_THAT(message({.num_drafts = -1}), HasSubstr("expected num_drafts 0"));
  EXPECT_THAT(message({.num_drafts = 1, .drafts = tokens}), HasSubstr("expected num_drafts 0"));
  EXPECT_THAT(message({.drafts = many}), HasSubstr("more than max_drafts"));
  EXPECT_THAT(message({.drafts = unknown}), HasSubstr("drafts: token of slot 0"));
  EXPECT_THAT(message({.tokens = tokens, .num_drafts = 1}), HasSubstr("expected no tokens"));
  EXPECT_THAT(message({.output = RowOutput::kNone, .num_drafts = 1}),
              HasSubstr("expected no tokens, RowOutput::kToken"));
  EXPECT_THAT(message({.logits = RowLogits::kAll, .num_drafts = 1}), HasSubstr("RowLogits::kLast"));
  // Until the drafts are settled, the host does not know the positions of its tokens.
  ASSERT_STEP(harness.Launch({{.slot = 0, .num_drafts = 2}}));
  EXPECT_THAT(message({.tokens = tokens}), HasSubstr("await the steps with these drafts first"));
  ASSERT_STEP(harness.Await());
  ASSERT_STEP(harness.Step({{.slot = 0, .num_drafts = 2}}));
}

TEST_P(SpeculationSuite, RejectsBadOptions) {
  const LayeredModelOptions model = TwoLayers(GetParam(), 1);
  const auto message = [&](const SpeculationOptions& speculation,
                           const LayeredModelOptions& draft = {}) {
    ModelRunnerOptions options = Options(Proposer::kNone);
    options.speculation = speculation;
    return std::string(SpeculationHarness::Create(options, model, draft).status().message());
  };
  EXPECT_THAT(message({.max_drafts = 17}), HasSubstr("speculation.max_drafts"));
  EXPECT_THAT(message({.proposer = NgramProposer{}}), HasSubstr("at least 1 for a proposer"));
  EXPECT_THAT(message({.max_drafts = 2, .proposer = NgramProposer{3, 2}}),
              HasSubstr("max_ngram of speculation.proposer: expected 3 to 16, got 2"));
  EXPECT_THAT(message({.max_drafts = 4, .graph_num_drafts = {2}}),
              HasSubstr("must end with max_drafts"));
  LayeredModelOptions draft = TwoLayers(GetParam(), 2);
  draft.vocab_size = kVocab + 1;
  EXPECT_THAT(message({.max_drafts = 2, .proposer = ProposerOf(Proposer::kModel)}, draft),
              HasSubstr("vocabulary as the model: expected vocab_size 61, got 62"));
  draft = TwoLayers(GetParam(), 2);
  draft.max_position = kMaxSeqLen - 1;
  EXPECT_THAT(message({.max_drafts = 2, .proposer = ProposerOf(Proposer::kModel)}, draft),
              HasSubstr("serve sequences as long"));
}

}  // namespace
}  // namespace reprise
