#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/merge/cascade_rule.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/async_engine.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 61;

// Returns the greedy text of one sequence, computed without a cache.
std::vector<int32_t> DenseGreedy(const ToyModel& model, std::vector<int32_t> text, int num_new) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < num_new; ++i) {
    tokens.push_back(static_cast<int32_t>(model.DenseLogits(text).argmax().item<int64_t>()));
    text.push_back(tokens.back());
  }
  return tokens;
}

struct EngineCase {
  int max_num_seqs;
  int max_num_tokens;
  int block_size;
  int num_blocks;
  int prefill_chunk;
  int max_steps_in_flight;
  GraphSetOptions::Mode graphs;
};

class EngineCaseTest : public testing::TestWithParam<EngineCase> {};

TEST_P(EngineCaseTest, TextsDoNotDependOnOtherRequests) {
  const EngineCase& c = GetParam();
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine = CreateEngine(
      &model, {.runner = {.max_num_seqs = c.max_num_seqs,
                          .max_num_tokens = c.max_num_tokens,
                          .max_steps_in_flight = c.max_steps_in_flight,
                          .cache = {.block_size = c.block_size, .size = NumBlocks{c.num_blocks}},
                          .graphs = {.mode = c.graphs}},
               .scheduler = {.prefill_chunk = c.prefill_chunk}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::mt19937 rng(3);
  std::map<int64_t, Request> requests;
  for (int i = 0; i < 9; ++i) {
    Request request = {.max_new_tokens = 1 + static_cast<int>(rng() % 20)};
    for (int n = 1 + rng() % 14; n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(rng() % kVocab));
    }
    const auto id = (*engine)->Add(request);
    ASSERT_TRUE(id.ok()) << id.status();
    requests[id->value()] = request;
  }
  const auto texts = RunAll(**engine);
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(texts.at(id), DenseGreedy(model, request.prompt, request.max_new_tokens))
        << "sequence " << id;
  }
  if (c.graphs != GraphSetOptions::Mode::kOff) {
    EXPECT_GT(ModelRunnerOf(**engine).graph_report().num_replays(), 0);
  }
}

constexpr auto kLazy = GraphSetOptions::Mode::kLazy;
constexpr auto kEager = GraphSetOptions::Mode::kEager;
constexpr auto kOff = GraphSetOptions::Mode::kOff;

INSTANTIATE_TEST_SUITE_P(Cases, EngineCaseTest,
                         testing::Values(EngineCase{1, 64, 16, 9, 0, 1, kLazy},
                                         EngineCase{4, 64, 16, 40, 0, 1, kEager},
                                         EngineCase{4, 6, 1, 200, 3, 1, kLazy},
                                         EngineCase{4, 64, 5, 40, 0, 2, kLazy},
                                         EngineCase{9, 64, 5, 12, 4, 3, kLazy},  // preempts
                                         EngineCase{3, 8, 4, 20, 0, 1, kOff}));

TEST(EngineTest, TextsDoNotDependOnPrefixHits) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  // Runs these prompts one after the other: a prompt; the same prompt; a longer one; one with a
  // different token 6; and the first prompt with its generated tokens.
  const std::vector<int32_t> first = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<std::vector<int32_t>> prompts = {first, first, first, first, first};
  prompts[2].insert(prompts[2].end(), {10, 11, 12, 13, 14});
  prompts[3][6] = 50;
  const std::vector<int32_t> generated = DenseGreedy(model, first, 8);
  prompts[4].insert(prompts[4].end(), generated.begin(), generated.end());
  struct Reuse {
    PrefixReuse prefix;
    PartialHits partial;
    int num_found;  // tokens
  };
  const Reuse reuses[] = {
      {PrefixReuse::kOff, PartialHits::kNone, 0},
      // Hits of 8 of 9, 8 of 14, 4 of 9, and 16 of 17 tokens. The last prompt has 9 + 7 tokens
      // whose keys were computed.
      {PrefixReuse::kOn, PartialHits::kNone, 8 + 8 + 4 + 16},
      // One more token of the third block of the longer prompt, and two more of the second block of
      // the next prompt.
      {PrefixReuse::kOn, PartialHits::kCopied, 8 + 9 + 6 + 16},
  };
  for (const Reuse& reuse : reuses) {
    auto engine = CreateEngine(
        &model, {.runner = {.max_num_seqs = 1, .cache = {.block_size = 4}},
                 .scheduler = {.prefix_reuse = reuse.prefix, .partial_hits = reuse.partial}});
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::vector<int64_t> ids;
    for (const std::vector<int32_t>& prompt : prompts) {
      const auto id = (*engine)->Add({.prompt = prompt, .max_new_tokens = 8});
      ASSERT_TRUE(id.ok()) << id.status();
      ids.push_back(id->value());
    }
    const auto texts = RunAll(**engine);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(texts.at(ids[i]), DenseGreedy(model, prompts[i], 8)) << "prompt " << i;
    }
    EXPECT_EQ((*engine)->scheduler().prefix_statistics().num_tokens_hit, reuse.num_found);
  }
}

// A model that checks the shared prefix length in its batches.
class WatchfulModel : public ToyModel {
 public:
  WatchfulModel() : ToyModel({.vocab_size = kVocab, .max_position = 256}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    const PagedBatch& batch = step.batch(0);
    if (batch.common_prefix_len != nullptr) {
      EXPECT_EQ(*batch.common_prefix_len,
                CommonPrefixOnHost({.batch = batch, .block_size = kBlockSize}));
      longest_ = std::max(longest_, *batch.common_prefix_len);
    }
    return ToyModel::Forward(step);
  }
  int32_t longest() const { return longest_; }

  static constexpr int kBlockSize = 4;

 private:
  int32_t longest_ = 0;
};

TEST(EngineTest, CascadeReadsASystemPromptOnceAndKeepsTexts) {
  std::mt19937 rng(21);
  const auto random = [&](int length) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(rng() % kVocab));
    return tokens;
  };
  const std::vector<int32_t> system = random(101);
  std::vector<std::vector<int32_t>> prompts = {system};
  for (int i = 0; i < 10; ++i) {
    prompts.push_back(system);
    const std::vector<int32_t> own = random(1 + i);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
  }
  prompts[7] = random(40);  // without the system prompt

  std::map<int64_t, std::vector<int32_t>> flat_texts;
  for (const CascadeMode cascade : {CascadeMode::kOff, CascadeMode::kAuto}) {
    for (const auto graphs : {kLazy, kEager, kOff}) {
      WatchfulModel model;
      auto engine = CreateEngine(
          &model, {.runner = {.max_num_seqs = 4,
                              .max_num_tokens = 128,
                              .max_steps_in_flight = 2,
                              .cache = {.block_size = WatchfulModel::kBlockSize},
                              .graphs = {.mode = graphs},
                              .device = {.cascade = cascade,
                                         .profile = ProfileWithCascade(
                                             {.read_tb_per_s = 1, .reread_tb_per_s = 1e-6})}}});
      ASSERT_TRUE(engine.ok()) << engine.status();
      std::map<int64_t, std::vector<int32_t>> texts;
      // The first prompt runs alone. The later prompts with the system prompt hit the keys that it
      // computed.
      for (size_t i = 0; i < prompts.size(); ++i) {
        const auto id =
            (*engine)->Add({.prompt = prompts[i], .max_new_tokens = 5 + static_cast<int>(i)});
        ASSERT_TRUE(id.ok()) << id.status();
        if (i == 0) texts.merge(RunAll(**engine));
      }
      texts.merge(RunAll(**engine));
      if (flat_texts.empty()) flat_texts = texts;
      EXPECT_EQ(texts, flat_texts);

      int64_t num_cascade_replays = 0;
      for (const GraphStats& graph : ModelRunnerOf(**engine).graph_report().graphs()) {
        if (graph.key.cascade) num_cascade_replays += graph.num_replays;
      }
      const StepCascade* decisions = ModelRunnerOf(**engine).cascade();
      if (cascade == CascadeMode::kOff) {
        EXPECT_EQ(decisions, nullptr);
        EXPECT_EQ(num_cascade_replays, 0);
        EXPECT_EQ(model.longest(), 0);
        continue;
      }
      // There are steps with the first prompt only, steps with prefill, steps with the prompt
      // without a shared prefix, and steps whose rows all share a prefix.
      EXPECT_GE(decisions->num_steps(CascadeReason::kFewRows), 4);
      EXPECT_GT(decisions->num_steps(CascadeReason::kManyQueries), 0);
      EXPECT_GT(decisions->num_steps(CascadeReason::kNoPrefix), 0);
      EXPECT_GT(decisions->num_steps(CascadeReason::kUse), 10);
      EXPECT_EQ(num_cascade_replays,
                graphs == kOff ? 0 : decisions->num_steps(CascadeReason::kUse));
      EXPECT_EQ(model.longest(), 100);  // 25 blocks
    }
  }
  for (const int i : {0, 3, 7}) {
    EXPECT_EQ(flat_texts.at(i), DenseGreedy(ToyModel({.vocab_size = kVocab}), prompts[i], 5 + i));
  }
}

TEST(EngineTest, TextOfASeedDoesNotDependOnTheBatch) {
  const Request request = {
      .prompt = {1, 2, 3},
      .max_new_tokens = 20,
      .sampling = {.temperature = 1.0f, .top_k = 20, .top_p = 0.9f, .seed = 7}};
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  std::vector<std::vector<int32_t>> texts;
  for (const int others : {0, 1, 5}) {
    auto engine = CreateEngine(
        &model, {.runner = {.max_num_seqs = 6, .max_steps_in_flight = 1 + others % 3}});
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int i = 0; i < others; ++i) {
      ASSERT_TRUE((*engine)->Add({.prompt = {5, i}, .max_new_tokens = 9 + i}).ok());
    }
    const auto id = (*engine)->Add(request);
    ASSERT_TRUE(id.ok()) << id.status();
    texts.push_back(RunAll(**engine).at(id->value()));
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
  EXPECT_NE(texts[0], DenseGreedy(model, request.prompt, 20));  // the text is sampled
}

TEST(EngineTest, InvalidRequestIsRejectedWithoutEffectOnOtherRequests) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 4}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto id = (*engine)->Add({.prompt = {1, 2, 3}, .max_new_tokens = 10});
  ASSERT_TRUE(id.ok()) << id.status();
  std::vector<TokenEvent> events;
  ASSERT_TRUE((*engine)->Step(events).ok());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const SamplingOptions& bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = kNan},
        SamplingOptions{.temperature = 1, .top_p = 0}, SamplingOptions{.top_p = kNan},
        SamplingOptions{.top_k = -3}, SamplingOptions{.min_p = 1.5f}}) {
    EXPECT_EQ((*engine)->Add({.prompt = {1}, .sampling = bad}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  std::vector<int32_t> text;
  for (const TokenEvent& event : events) text.push_back(event.token.value_or(-1));
  const auto rest = RunAll(**engine);
  text.insert(text.end(), rest.at(id->value()).begin(), rest.at(id->value()).end());
  EXPECT_EQ(text, DenseGreedy(model, {1, 2, 3}, 10));
}

TEST(EngineTest, EqualRequestsWithoutASeedGetDifferentTexts) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 2}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int i = 0; i < 2; ++i) {
    const Request request = {
        .prompt = {1, 2}, .max_new_tokens = 20, .sampling = {.temperature = 5}};
    ASSERT_TRUE((*engine)->Add(request).ok());
  }
  const auto texts = RunAll(**engine);
  EXPECT_NE(texts.at(0), texts.at(1));
}

TEST(EngineTest, SequencesOfARequestMatchSingleRequestsWithTheirSeeds) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  const Request request = {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9},
                           .max_new_tokens = 12,
                           .sampling = {.temperature = 2, .seed = 100},
                           .num_sequences = 3};
  for (const PrefixReuse reuse : {PrefixReuse::kOn, PrefixReuse::kOff}) {
    for (const int max_steps_in_flight : {1, 2}) {
      auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 4,
                                                     .max_steps_in_flight = max_steps_in_flight,
                                                     .cache = {.block_size = 4}},
                                          .scheduler = {.prefix_reuse = reuse}});
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Add(request).ok());
      std::vector<std::vector<int32_t>> texts(3);
      std::vector<TokenEvent> events;
      while ((*engine)->has_work()) {
        events.clear();
        ASSERT_TRUE((*engine)->Step(events).ok());
        for (const TokenEvent& event : events) texts[event.sample].push_back(*event.token);
      }
      EXPECT_EQ((*engine)->scheduler().num_forks(), 2);
      for (int i = 0; i < 3; ++i) {
        auto alone = CreateEngine(&model, {.runner = {.max_num_seqs = 1}});
        ASSERT_TRUE(alone.ok()) << alone.status();
        Request one = request;
        one.num_sequences = 1;
        one.sampling.seed = 100 + i;
        ASSERT_TRUE((*alone)->Add(one).ok());
        EXPECT_EQ(texts[i], RunAll(**alone).at(0)) << "sample " << i;
      }
    }
  }
}

TEST(EngineTest, CancelDoesNotChangeOtherTexts) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine = CreateEngine(
      &model, {.runner = {.max_num_seqs = 2, .cache = {.block_size = 4, .size = NumBlocks{20}}}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) {
    const auto id = (*engine)->Add({.prompt = {i, 2, 3}, .max_new_tokens = 15});
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(*id);
  }
  std::map<SequenceId, std::vector<int32_t>> texts;
  std::vector<TokenEvent> events;
  for (int step = 0; (*engine)->has_work(); ++step) {
    events.clear();
    if (step == 5) {
      ASSERT_TRUE((*engine)->Cancel(ids[0], events).ok());  // a running request
      ASSERT_TRUE((*engine)->Cancel(ids[2], events).ok());  // a waiting request
    }
    ASSERT_TRUE((*engine)->Step(events).ok());
    for (const TokenEvent& event : events) {
      if (event.token.has_value()) texts[event.sequence].push_back(*event.token);
    }
  }
  EXPECT_LT(texts[ids[0]].size(), 15u);
  EXPECT_EQ(texts[ids[1]], DenseGreedy(model, {1, 2, 3}, 15));
  EXPECT_TRUE(texts[ids[2]].empty());
  EXPECT_EQ(texts[ids[3]], DenseGreedy(model, {3, 2, 3}, 15));
  EXPECT_EQ((*engine)->scheduler().blocks().pool().num_used(), 0);
}

// A model that fails or throws in one of its forward passes.
class FallibleModel : public ToyModel {
 public:
  enum class Fault { kStatus, kInvalidArgument, kException };
  FallibleModel() : ToyModel({.vocab_size = kVocab, .max_position = 64}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    if (num_until_fault-- == 0) {
      if (fault == Fault::kException) TORCH_CHECK(false, "the model threw");
      if (fault == Fault::kInvalidArgument) return absl::InvalidArgumentError("the model refused");
      return absl::InternalError("the model failed");
    }
    return ToyModel::Forward(step);
  }

  int num_until_fault = -1;
  Fault fault = Fault::kStatus;
};

TEST(EngineTest, FailingModelFailsTheSequencesOfItsStep) {
  for (const auto fault : {FallibleModel::Fault::kStatus, FallibleModel::Fault::kInvalidArgument,
                           FallibleModel::Fault::kException}) {
    for (const int max_steps_in_flight : {1, 2}) {
      FallibleModel model;
      auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 2,
                                                     .max_steps_in_flight = max_steps_in_flight,
                                                     .graphs = {.mode = kOff}}});
      ASSERT_TRUE(engine.ok()) << engine.status();
      model.fault = fault;
      for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE((*engine)->Add({.prompt = {i, 2, 3}, .max_new_tokens = 12}).ok());
      }
      std::map<int64_t, std::vector<int32_t>> texts;
      std::map<int64_t, FinishReason> finishes;
      std::vector<TokenEvent> events;
      for (int step = 0; (*engine)->has_work(); ++step) {
        events.clear();
        if (step == 4) model.num_until_fault = 0;
        const absl::Status status = (*engine)->Step(events);
        ASSERT_TRUE(status.ok()) << status;
        (*engine)->scheduler().CheckInvariants();
        for (const TokenEvent& event : events) {
          if (event.token.has_value()) texts[event.sequence.value()].push_back(*event.token);
          finishes[event.sequence.value()] = event.finish;
          EXPECT_EQ(event.error.ok(), event.finish != FinishReason::kError);
        }
      }
      for (int i = 0; i < 5; ++i) {
        const std::vector<int32_t> whole = DenseGreedy(model, {i, 2, 3}, 12);
        EXPECT_EQ(finishes[i], i < 2 ? FinishReason::kError : FinishReason::kLength);
        if (i < 2) {
          EXPECT_LT(texts[i].size(), whole.size());
          EXPECT_TRUE(std::equal(texts[i].begin(), texts[i].end(), whole.begin()));
        } else {
          EXPECT_EQ(texts[i], whole);
        }
      }
      EXPECT_EQ((*engine)->scheduler().blocks().pool().num_used(), 0);
    }
  }
}

// Rows join, end and move between the steps in flight.
TEST(EngineTest, LogitsOfReturnsTheLogitsOfEachToken) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto created =
      CreateEngine(&model, {.runner = {.max_num_seqs = 3,
                                       .max_num_tokens = 8,
                                       .max_steps_in_flight = 3,
                                       .logits = {.step_logits = StepLogits::kOfEvery}}});
  ASSERT_TRUE(created.ok()) << created.status();
  Engine& engine = **created;
  std::map<int64_t, std::vector<int32_t>> texts;
  for (int i = 0; i < 6; ++i) {
    const std::vector<int32_t> prompt(1 + 2 * i, 7 + i);
    const auto id = engine.Add({.prompt = prompt, .max_new_tokens = 3 + 4 * (i % 3)});
    ASSERT_TRUE(id.ok()) << id.status();
    texts[id->value()] = prompt;
  }
  std::vector<TokenEvent> events;
  int num_tokens = 0;
  while (engine.has_work()) {
    events.clear();
    ASSERT_TRUE(engine.Step(events).ok());
    for (const TokenEvent& event : events) {
      std::vector<int32_t>& text = texts[event.sequence.value()];
      const at::Tensor error = (*LogitsOf(engine, event) - model.DenseLogits(text)).abs().max();
      EXPECT_LT(error.item<float>(), 1e-4f);
      text.push_back(*event.token);
      ++num_tokens;
    }
  }
  EXPECT_EQ(num_tokens, 2 * (3 + 7 + 11));
  EXPECT_EQ(LogitsOf(engine, {.finish = FinishReason::kError}).status().message(),
            "event must have a token that a step computed: got none");
}

TEST(EngineTest, AsyncEngineMatchesDenseForward) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto inner = CreateEngine(&model, {.runner = {.max_num_seqs = 3, .max_steps_in_flight = 2}});
  ASSERT_TRUE(inner.ok()) << inner.status();
  std::vector<std::vector<int32_t>> texts(8);
  AsyncEngine engine(*std::move(inner));
  for (int i = 0; i < 8; ++i) {
    const auto id = engine.Add(
        {.prompt = {i, 4}, .max_new_tokens = 10},
        [&text = texts[i]](const TokenEvent& event) { text.push_back(event.token.value_or(-1)); });
    ASSERT_TRUE(id.ok()) << id.status();
  }
  ASSERT_TRUE(engine.Drain().ok());
  ASSERT_TRUE(engine.Shutdown().ok());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(texts[i], DenseGreedy(model, {i, 4}, 10)) << "request " << i;
  }
  EXPECT_EQ(engine.metrics().num_generated_tokens, 80);
  EXPECT_GT(engine.metrics().num_graph_replays, 0);
}

TEST(EngineTest, EveryDecodeStepIsReplayed) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 4}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE((*engine)->Add({.prompt = {1, 2}, .max_new_tokens = 10}).ok());
  }
  RunAll(**engine);
  const GraphReport& report = ModelRunnerOf(**engine).graph_report();
  EXPECT_EQ(report.num_eager_steps(), 1);  // the prefill of all four requests
  EXPECT_EQ(report.num_eager_steps(EagerReason::kQueryTooLong), 1);
  EXPECT_EQ(report.num_replays(), 9);
}

TEST(EngineTest, RejectsTokensOutsideTheVocabulary) {
  ToyModel model({.vocab_size = kVocab});
  auto engine = CreateEngine(&model, {});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_THAT(std::string((*engine)->Add({.prompt = {1, 61}}).status().message()),
              HasSubstr("prompt must hold ids in [0, 61): got 61 at index 1"));
  EXPECT_THAT(
      std::string((*engine)->Add({.prompt = {1}, .forced_tokens = {-3}}).status().message()),
      HasSubstr("forced_tokens"));
  EXPECT_FALSE((*engine)->has_work());
}

}  // namespace
}  // namespace reprise
