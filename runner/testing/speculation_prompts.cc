// Texts of many prompts with every proposer, chains and trees, over every kind of model.
// REPRISE_SPECULATION_PROMPTS says how many prompts, for example 200; 8 if it is not set.

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "glog/logging.h"
#include "runner/speculation/draft_heads.h"
#include "runner/testing/speculation_harness.h"
#include "runner/testing/speculation_suite.h"
#include "runner/testing/speculation_texts.h"

namespace reprise {

namespace {

using speculation_tests::ExpectTexts;
using speculation_tests::kChainDrafts;
using speculation_tests::kVocab;
using speculation_tests::Options;
using speculation_tests::PlainTexts;
using speculation_tests::Request;
using speculation_tests::ShortSighted;
using speculation_tests::SomeRequests;
using Proposer = SpeculationOptions::Proposer;

constexpr int kSlots = 4;
constexpr int kTreeDrafts = 15;

int NumPrompts() {
  const char* const text = std::getenv("REPRISE_SPECULATION_PROMPTS");
  int count = 8;
  if (text != nullptr) CHECK(absl::SimpleAtoi(text, &count)) << text;
  return (count + kSlots - 1) / kSlots * kSlots;
}

// A random matrix for each token that follows.
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

ModelRunnerOptions OptionsOf(const Drafts& drafts, DraftHeads* heads) {
  ModelRunnerOptions options = Options(drafts.proposer);
  if (drafts.proposer == Proposer::kHeads) options.speculation.heads = heads;
  if (!drafts.tree) return options;
  options.speculation.shape = DraftShape::kTree;
  options.speculation.max_drafts = kTreeDrafts;
  options.speculation.graph_num_drafts = {4, kTreeDrafts};
  if (drafts.proposer == Proposer::kModel) {
    options.speculation.tree = {0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9};
  }
  return options;
}

// Drafts that a caller gives behind a text of `length` tokens: chains or random trees, of which
// `percent_right` are right where what they follow is.
SpeculationRow Given(std::mt19937& rng, const std::vector<int32_t>& want, size_t length, int count,
                     bool tree, int percent_right) {
  SpeculationRow row;
  std::vector<int> right_depth = {0};  // of each node; -1: it is wrong
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
  for (size_t first = 0; first < requests.size(); first += kSlots) {
    const auto begin = static_cast<int64_t>(first);
    const std::vector<Request> group(requests.begin() + begin, requests.begin() + begin + kSlots);
    const std::vector<std::vector<int32_t>> texts(want.begin() + begin,
                                                  want.begin() + begin + kSlots);
    // All lengths in turn, and drafts that are all wrong, all right, or between.
    const int num_drafts = 1 + static_cast<int>(3 * first / kSlots + 1) % most;
    const int percent_right = static_cast<int>(first / kSlots % 4) * 33 + 1;
    ExpectTexts(harness, group, texts, [&](int slot, int room) {
      const int count =
          std::min(room, rng() % 5 == 0 ? static_cast<int>(rng() % (most + 1)) : num_drafts);
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
}

void ExpectPlainTextsOfAll(LayeredModelOptions model, bool serves_trees) {
  model.hidden = LayeredModelOptions::Hidden::kStream;
  std::vector<Request> requests;
  for (uint32_t seed = 100; static_cast<int>(requests.size()) < NumPrompts(); ++seed) {
    for (Request& request : SomeRequests(seed)) requests.push_back(std::move(request));
  }
  const std::vector<std::vector<int32_t>> want = PlainTexts(model, requests);
  for (const Drafts& drafts :
       {Drafts{Proposer::kNone}, Drafts{Proposer::kNgram}, Drafts{Proposer::kModel},
        Drafts{Proposer::kHeads}, Drafts{Proposer::kNone, true}, Drafts{Proposer::kNgram, true},
        Drafts{Proposer::kModel, true}}) {
    if (drafts.tree && !serves_trees) continue;
    SCOPED_TRACE(testing::Message()
                 << "proposer " << static_cast<int>(drafts.proposer) << ", tree " << drafts.tree);
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

}  // namespace
}  // namespace reprise
