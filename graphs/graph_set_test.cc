#include "reprise/graphs/graph_set.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/graphs/recorded_backend.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Mode = GraphSetOptions::Mode;
using Kind = GraphDecision::Kind;

GraphSetOptions Options(Mode mode = Mode::kEager) {
  return {.mode = mode, .max_num_seqs = 16, .sizes = {1, 2, 4, 8, 16}, .max_seq_len = 1024};
}

StepShape DecodeOf(int num_seqs, int max_seq_len = 100) {
  return {.num_seqs = num_seqs, .num_tokens = num_seqs, .max_seq_len = max_seq_len};
}

GraphKey Key(int num_seqs, int query_len = 1) {
  return {.padded_num_seqs = num_seqs,
          .padded_num_tokens = num_seqs * query_len,
          .max_query_len = query_len};
}

// A backend that keeps the call of each capture, counts the existing graphs, and reports costs set
// by the test.
class PricedBackend : public GraphBackend {
 public:
  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) override {
    if (absl::Status status = step(); !status.ok()) return status;
    ++num_live_;
    return std::make_unique<Graph>(this, std::move(step), price_);
  }

  absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()> step) override {
    if (absl::Status status = step(); !status.ok()) return status;
    return price_;
  }

  absl::Status RunBetweenGraphs(std::function<absl::Status()> work) override { return work(); }

  // Sets the memory of all later captures.
  void set_price(const GraphBytes& price) { price_ = price; }
  int num_live() const { return num_live_; }

 private:
  class Graph : public CapturedGraph {
   public:
    Graph(PricedBackend* backend, std::function<absl::Status()> step, const GraphBytes& bytes)
        : backend_(backend), step_(std::move(step)), bytes_(bytes) {}
    ~Graph() override { --backend_->num_live_; }
    absl::Status Replay() override { return step_(); }
    int num_graphs() const override { return 1; }
    GraphBytes bytes() const override { return bytes_; }

   private:
    PricedBackend* backend_;
    std::function<absl::Status()> step_;
    GraphBytes bytes_;
  };

  GraphBytes price_;
  int num_live_ = 0;
};

// A set, and a step maker that records the key of each step that runs.
class GraphSetTest : public ::testing::Test {
 protected:
  void Make(const GraphSetOptions& options) {
    absl::StatusOr<std::unique_ptr<GraphSet>> set = GraphSet::Create(options, &backend_);
    ASSERT_TRUE(set.ok()) << set.status();
    set_ = *std::move(set);
  }

  void MakeCaptured(const GraphSetOptions& options) {
    Make(options);
    ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
    runs_.clear();
  }

  // Decides and counts a step, like a runner. Replays the step if it has a graph.
  GraphDecision Step(const StepShape& shape) {
    GraphDecision decision = set_->Decide(shape);
    if (decision.kind == Kind::kReplay) {
      const absl::StatusOr<GraphDecision> outcome =
          set_->Replay(decision.key, make_step_, fingerprint_);
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      if (outcome.ok()) decision = *outcome;
    }
    set_->Count(decision, shape);
    return decision;
  }

  EagerReason ReasonOf(const StepShape& shape) const { return set_->Decide(shape).reason; }

  PricedBackend backend_;
  std::vector<GraphKey> runs_;
  absl::Status step_status_;
  GraphSet::StepMaker make_step_ = [this](const GraphKey& key) {
    return [this, key] {
      runs_.push_back(key);
      return step_status_;
    };
  };
  Fingerprint fingerprint_;
  std::unique_ptr<GraphSet> set_;
};

TEST_F(GraphSetTest, RejectsOptionsOutOfRange) {
  GraphSetOptions options = Options();
  options.sizes = {1, 17};
  const absl::Status status = GraphSet::Create(options, &backend_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sizes must not pass max_num_seqs"));
}

TEST_F(GraphSetTest, RejectsNullBackendUnlessModeIsOff) {
  EXPECT_TRUE(GraphSet::Create(Options(Mode::kOff), nullptr).ok());
  for (const Mode mode : {Mode::kEager, Mode::kLazy}) {
    const absl::Status status = GraphSet::Create(Options(mode), nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("backend must not be null"));
  }
}

TEST_F(GraphSetTest, UsesTheDefaultSizesIfSizesIsEmpty) {
  Make({.max_num_seqs = 13, .max_seq_len = 64});
  EXPECT_THAT(set_->keys(), ElementsAre(Key(13), Key(8), Key(4), Key(2), Key(1)));
}

TEST_F(GraphSetTest, KeysAreAllCombinationsLargestFirst) {
  GraphSetOptions options = Options();
  options.sizes = {1, 5, 16};
  options.query_lens = {1, 5};
  options.inputs = {StepInput::kTokens, StepInput::kEmbeddings};
  options.cascade = GraphSetOptions::Cascade::kCaptured;
  Make(options);
  const std::vector<GraphKey> keys = set_->keys();
  ASSERT_EQ(keys.size(), 3u * 2 * 2 * 2);
  EXPECT_EQ(absl::flat_hash_set<GraphKey>(keys.begin(), keys.end()).size(), keys.size());
  for (size_t i = 1; i < keys.size(); ++i) {
    EXPECT_EQ(keys[i].cascade, i >= 12) << keys[i];
    if (i == 12) continue;
    EXPECT_GE(keys[i - 1].padded_num_tokens, keys[i].padded_num_tokens) << keys[i];
  }
  // 80, 25 and 16 tokens, then 5 x 1 and 1 x 5, which tie in tokens: more sequences come first.
  // Each key occurs for 2 inputs.
  EXPECT_EQ(keys.front().padded_num_tokens, 80);
  EXPECT_EQ(keys[6].padded_num_seqs, 5);
  EXPECT_EQ(keys[8].max_query_len, 5);
  EXPECT_EQ(keys[12].padded_num_tokens, 80);
  EXPECT_EQ(keys.back().padded_num_tokens, 1);
}

TEST_F(GraphSetTest, PadsEveryLiveCountToTheSmallestSufficientSize) {
  MakeCaptured(Options());
  const std::vector<int> padded = {1, 2, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16};
  for (int num_seqs = 1; num_seqs <= 16; ++num_seqs) {
    const GraphDecision decision = set_->Decide(DecodeOf(num_seqs));
    const GraphDecision expected{
        .kind = Kind::kReplay, .reason = EagerReason::kNone, .key = Key(padded[num_seqs - 1])};
    EXPECT_EQ(decision, expected) << num_seqs;
  }
  const GraphDecision decision = set_->Decide(DecodeOf(17));
  EXPECT_EQ(decision.kind, Kind::kEager);
  EXPECT_EQ(decision.reason, EagerReason::kTooManySeqs);
  EXPECT_EQ(decision.key, Key(17));  // live counts
}

TEST_F(GraphSetTest, VerifyGraphServesAllShorterDraftLengths) {
  GraphSetOptions options = Options();
  options.query_lens = {1, 3, 5};
  MakeCaptured(options);
  const std::vector<int> served_by = {1, 3, 3, 5, 5};
  for (int query_len = 1; query_len <= 5; ++query_len) {
    const GraphDecision decision =
        set_->Decide({.num_seqs = 3, .num_tokens = 2 + query_len, .max_query_len = query_len});
    EXPECT_EQ(decision.kind, Kind::kReplay);
    EXPECT_EQ(decision.key, Key(4, served_by[query_len - 1]));
    EXPECT_EQ(decision.key.padded_num_tokens, 4 * served_by[query_len - 1]);
  }
  EXPECT_EQ(ReasonOf({.num_seqs = 3, .num_tokens = 8, .max_query_len = 6}),
            EagerReason::kQueryTooLong);
}

TEST_F(GraphSetTest, PrefillRowMakesTheStepEagerWithLiveCounts) {
  MakeCaptured(Options());
  const GraphDecision decision =
      set_->Decide({.num_seqs = 3, .num_tokens = 20, .max_query_len = 18});
  EXPECT_EQ(decision.reason, EagerReason::kQueryTooLong);
  EXPECT_EQ(decision.key.padded_num_seqs, 3);
  EXPECT_EQ(decision.key.padded_num_tokens, 20);
  EXPECT_EQ(decision.key.max_query_len, 18);
}

TEST_F(GraphSetTest, ASequenceBeyondTheCapturedLengthMakesTheStepEager) {
  MakeCaptured(Options());
  EXPECT_EQ(ReasonOf(DecodeOf(4, 1024)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(DecodeOf(4, 1025)), EagerReason::kSequenceTooLong);
}

TEST_F(GraphSetTest, AnIdleStepIsEager) {
  MakeCaptured(Options());
  EXPECT_EQ(ReasonOf({.num_seqs = 0, .num_tokens = 0}), EagerReason::kIdle);
}

TEST_F(GraphSetTest, AnInputWithoutAGraphIsNotCaptured) {
  MakeCaptured(Options());
  StepShape shape = DecodeOf(4);
  shape.input = StepInput::kEmbeddings;
  EXPECT_EQ(ReasonOf(shape), EagerReason::kNotCaptured);
}

// Equal padding keeps results bitwise identical if a text is passed as the embeddings of its
// tokens.
TEST_F(GraphSetTest, EmbeddingsArePaddedLikeTokensWhetherTheyHaveGraphsOrNot) {
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    GraphSetOptions options = Options(mode);
    options.query_lens = {1, 3};
    options.inputs = {StepInput::kTokens, StepInput::kEmbeddings};
    options.min_embedding_query_len = 2;
    MakeCaptured(options);
    EXPECT_EQ(set_->keys().size(), 5u * 2 + 5u);  // embeddings only for 3 tokens per row
    for (int query_len = 1; query_len <= 4; ++query_len) {
      StepShape shape = {.num_seqs = 3, .num_tokens = 2 + query_len, .max_query_len = query_len};
      const GraphDecision tokens = set_->Decide(shape);
      shape.input = StepInput::kEmbeddings;
      const GraphDecision embeddings = set_->Decide(shape);
      GraphKey key = tokens.key;
      key.input = StepInput::kEmbeddings;
      EXPECT_EQ(embeddings.key, key) << query_len;
      if (query_len == 1 && mode != Mode::kOff) {
        EXPECT_EQ(tokens.kind, Kind::kReplay);
        EXPECT_EQ(embeddings.kind, Kind::kEager);
        EXPECT_EQ(embeddings.reason, EagerReason::kNotCaptured);
      } else {
        EXPECT_EQ(embeddings.kind, tokens.kind) << query_len;
        EXPECT_EQ(embeddings.reason, tokens.reason) << query_len;
      }
    }
    set_.reset();
  }
}

StepShape CascadeOf(int num_seqs) {
  StepShape shape = DecodeOf(num_seqs);
  shape.cascade = true;
  return shape;
}

GraphKey CascadeKey(int num_seqs) {
  GraphKey key = Key(num_seqs);
  key.cascade = true;
  return key;
}

// A step that allows a cascade uses a flat graph rather than run eagerly.
TEST_F(GraphSetTest, CascadeStepUsesFlatGraphIfNoCascadeGraphExists) {
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    GraphSetOptions options = Options(mode);
    MakeCaptured(options);
    EXPECT_EQ(set_->Decide(CascadeOf(4)).key, Key(4));
    EXPECT_EQ(set_->Decide(CascadeOf(4)), set_->Decide(DecodeOf(4)));
    set_.reset();

    options.cascade = GraphSetOptions::Cascade::kCaptured;
    options.min_cascade_seqs = 3;
    MakeCaptured(options);
    EXPECT_EQ(set_->keys().size(), 5u + 3u);  // cascade keys have 4, 8 or 16 sequences
    EXPECT_EQ(set_->Decide(CascadeOf(2)).key, Key(2));
    EXPECT_EQ(set_->Decide(CascadeOf(3)).key, CascadeKey(4));
    EXPECT_EQ(set_->Decide(DecodeOf(3)).key, Key(4));
    set_.reset();
  }
}

TEST_F(GraphSetTest, CapturesFlatGraphsBeforeCascadeGraphsUnderABudget) {
  backend_.set_price({.pool = 100, .driver = 0});
  GraphSetOptions options = Options();
  options.cascade = GraphSetOptions::Cascade::kCaptured;
  options.memory_budget_bytes = 650;
  MakeCaptured(options);
  EXPECT_EQ(set_->Decide(CascadeOf(16)).key, CascadeKey(16));
  EXPECT_EQ(set_->Decide(CascadeOf(8)).key, Key(8));  // a seventh graph would exceed the budget
  EXPECT_EQ(ReasonOf(CascadeOf(8)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kNone);
}

TEST_F(GraphSetTest, EachKindOfStepUsesTheMatchingGraph) {
  GraphSetOptions options = Options();
  options.inputs = {StepInput::kEmbeddings, StepInput::kTokens};
  options.cascade = GraphSetOptions::Cascade::kCaptured;
  MakeCaptured(options);
  for (const StepInput input : options.inputs) {
    for (const bool cascade : {false, true}) {
      StepShape shape = DecodeOf(3);
      shape.input = input;
      shape.cascade = cascade;
      const GraphDecision decision = Step(shape);
      EXPECT_EQ(decision.kind, Kind::kReplay);
      GraphKey key = Key(4);
      key.input = input;
      key.cascade = cascade;
      EXPECT_EQ(decision.key, key);
      EXPECT_EQ(runs_.back(), key);
    }
  }
}

TEST_F(GraphSetTest, TheFirstReasonInOrderIsNamed) {
  MakeCaptured(Options());
  EXPECT_EQ(ReasonOf({.num_seqs = 17, .num_tokens = 50, .max_query_len = 18, .max_seq_len = 9999}),
            EagerReason::kTooManySeqs);
  EXPECT_EQ(ReasonOf({.num_seqs = 16, .num_tokens = 50, .max_query_len = 18, .max_seq_len = 9999}),
            EagerReason::kQueryTooLong);
}

TEST_F(GraphSetTest, RejectsReplayBeforeCapture) {
  Make(Options());
  const GraphDecision decision = set_->Decide(DecodeOf(13));
  EXPECT_EQ(decision.reason, EagerReason::kNotCaptured);
  EXPECT_EQ(decision.key, Key(13));
  const absl::Status status = set_->Replay(Key(16), make_step_, fingerprint_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("key must be captured before it is replayed: got 16 seqs x 1, tokens"));
  EXPECT_THAT(runs_, IsEmpty());
}

TEST_F(GraphSetTest, CapturesEveryKeyOnceLargestFirst) {
  Make(Options());
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_EQ(runs_, set_->keys());
  EXPECT_EQ(backend_.num_live(), 5);
  EXPECT_EQ(set_->report().graphs().size(), 5u);

  runs_.clear();
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_THAT(runs_, IsEmpty());  // every key has been captured already
}

TEST_F(GraphSetTest, CaptureCanContinueAfterAFailureWithTheEarlierGraphs) {
  Make(Options());
  const GraphSet::StepMaker fails_at_4 = [&](const GraphKey& key) -> std::function<absl::Status()> {
    if (key.padded_num_seqs == 4) return [] { return absl::InternalError("no kernel"); };
    return make_step_(key);
  };
  EXPECT_EQ(set_->CaptureAll(fails_at_4, fingerprint_), absl::InternalError("no kernel"));
  EXPECT_THAT(runs_, ElementsAre(Key(16), Key(8)));
  EXPECT_EQ(ReasonOf(DecodeOf(5)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(DecodeOf(4)), EagerReason::kNotCaptured);

  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_THAT(runs_, ElementsAre(Key(16), Key(8), Key(4), Key(2), Key(1)));
  EXPECT_EQ(ReasonOf(DecodeOf(4)), EagerReason::kNone);
}

TEST_F(GraphSetTest, ALazySetCapturesAKeyWhenItIsFirstReplayed) {
  Make(Options(Mode::kLazy));
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_THAT(runs_, IsEmpty());

  EXPECT_EQ(Step(DecodeOf(3)).kind, Kind::kReplay);
  EXPECT_THAT(runs_, ElementsAre(Key(4), Key(4)));  // warm-up, replay
  EXPECT_EQ(backend_.num_live(), 1);
  EXPECT_EQ(Step(DecodeOf(4)).kind, Kind::kReplay);
  EXPECT_THAT(runs_, ElementsAre(Key(4), Key(4), Key(4)));
  EXPECT_EQ(backend_.num_live(), 1);
  EXPECT_EQ(set_->report().Find(Key(4))->num_replays, 2);
}

TEST_F(GraphSetTest, ALazyCaptureThatFailsLeavesTheKeyUncaptured) {
  Make(Options(Mode::kLazy));
  step_status_ = absl::InternalError("no kernel");
  EXPECT_EQ(set_->Replay(Key(4), make_step_, fingerprint_).status(), step_status_);
  EXPECT_EQ(set_->report().graphs().size(), 0u);
  step_status_ = absl::OkStatus();
  EXPECT_TRUE(set_->Replay(Key(4), make_step_, fingerprint_).ok());
}

TEST_F(GraphSetTest, NeverCapturesKeysOutsideKeys) {
  GraphSetOptions options = Options(Mode::kLazy);
  options.query_lens = {1, 3};
  Make(options);
  GraphKey tokens_off = Key(4, 3);
  tokens_off.padded_num_tokens = 11;
  GraphKey cascade = Key(4);
  cascade.cascade = true;
  GraphKey embeddings = Key(4);
  embeddings.input = StepInput::kEmbeddings;
  for (const GraphKey& key : {Key(3), Key(0), Key(-4), Key(17), Key(4, 2), Key(4, 0), tokens_off,
                              cascade, embeddings, GraphKey{}}) {
    const absl::Status status = set_->Replay(key, make_step_, fingerprint_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("key must be one of keys(): got ", ToString(key))));
  }
  EXPECT_THAT(runs_, IsEmpty());
  EXPECT_EQ(backend_.num_live(), 0);
}

TEST_F(GraphSetTest, ModeOffPadsTheSameButRunsNothing) {
  Make(Options(Mode::kOff));
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_THAT(runs_, IsEmpty());
  PricedBackend other_backend;
  const auto on = *GraphSet::Create(Options(), &other_backend);
  ASSERT_TRUE(on->CaptureAll(make_step_, fingerprint_).ok());

  for (int num_seqs = 0; num_seqs <= 18; ++num_seqs) {
    const GraphDecision decision = set_->Decide(DecodeOf(num_seqs));
    EXPECT_EQ(decision.kind, Kind::kEager);
    EXPECT_EQ(decision.reason, EagerReason::kDisabled);
    EXPECT_EQ(decision.key, on->Decide(DecodeOf(num_seqs)).key) << num_seqs;
  }
  EXPECT_EQ(*set_->EstimateBytes(make_step_), 0);
}

TEST_F(GraphSetTest, RejectsReplayWithADifferentFingerprint) {
  fingerprint_.AddValue("max_seq_len", 1024);
  fingerprint_.AddAddress("block_table", &backend_);
  for (const Mode mode : {Mode::kEager, Mode::kLazy}) {
    MakeCaptured(Options(mode));
    ASSERT_TRUE(set_->Replay(Key(4), make_step_, fingerprint_).ok());
    runs_.clear();

    Fingerprint moved;
    moved.AddValue("max_seq_len", 1024);
    moved.AddAddress("block_table", &runs_);
    const absl::Status status = set_->Replay(Key(4), make_step_, moved).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("block_table: expected 0x"));
    EXPECT_THAT(runs_, IsEmpty());

    EXPECT_TRUE(set_->Replay(Key(4), make_step_, fingerprint_).ok());  // the graph is still usable
    set_.reset();
  }
}

TEST_F(GraphSetTest, ComparesEachReplayWithTheFingerprintOfThatCapture) {
  Make(Options(Mode::kLazy));
  Fingerprint first, second;
  first.AddValue("generation", 1);
  second.AddValue("generation", 2);
  ASSERT_TRUE(set_->Replay(Key(4), make_step_, first).ok());
  ASSERT_TRUE(set_->Replay(Key(8), make_step_, second).ok());
  EXPECT_FALSE(set_->Replay(Key(4), make_step_, second).ok());
  EXPECT_FALSE(set_->Replay(Key(8), make_step_, first).ok());
  EXPECT_TRUE(set_->Replay(Key(8), make_step_, second).ok());
}

TEST_F(GraphSetTest, AnErrorOfTheReplayedStepIsReturned) {
  MakeCaptured(Options());
  step_status_ = absl::UnavailableError("device lost");
  EXPECT_EQ(set_->Replay(Key(2), make_step_, fingerprint_).status(), step_status_);
}

TEST_F(GraphSetTest, UndoesTheCaptureOverTheBudgetAndCapturesNoMore) {
  backend_.set_price({.pool = 0, .driver = 100});
  GraphSetOptions options = Options();
  options.memory_budget_bytes = 299;  // 16 and 8 fit, 4 does not
  Make(options);
  ASSERT_TRUE(set_->CaptureAll(make_step_, fingerprint_).ok());
  EXPECT_THAT(runs_, ElementsAre(Key(16), Key(8), Key(4)));
  EXPECT_EQ(backend_.num_live(), 2);
  EXPECT_EQ(set_->report().graph_bytes(), 200);
  EXPECT_EQ(ReasonOf(DecodeOf(16)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(DecodeOf(4)), EagerReason::kOverBudget);
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kOverBudget);
  EXPECT_EQ(set_->Decide(DecodeOf(3)).key, Key(3));  // live counts
  EXPECT_EQ(ReasonOf(DecodeOf(17)), EagerReason::kTooManySeqs);

  EXPECT_EQ(set_->Replay(Key(4), make_step_, fingerprint_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(GraphSetTest, CapturesEveryGraphIfTheBudgetIsExactlyMet) {
  backend_.set_price({.pool = 40, .driver = 60});
  GraphSetOptions options = Options();
  options.memory_budget_bytes = 500;
  MakeCaptured(options);
  EXPECT_EQ(set_->report().graph_bytes(), 500);
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kNone);
}

TEST_F(GraphSetTest, BudgetOfZeroAllowsGraphsWithoutMemory) {
  GraphSetOptions options = Options();
  options.memory_budget_bytes = 0;
  MakeCaptured(options);
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kNone);
  set_.reset();
  backend_.set_price({.pool = 1, .driver = 0});
  MakeCaptured(options);
  EXPECT_EQ(ReasonOf(DecodeOf(16)), EagerReason::kOverBudget);
  EXPECT_EQ(backend_.num_live(), 0);
}

TEST_F(GraphSetTest, LazyCaptureOverTheBudgetRunsTheStepOnceAndCountsAsEager) {
  backend_.set_price({.pool = 100, .driver = 0});
  GraphSetOptions options = Options(Mode::kLazy);
  options.memory_budget_bytes = 150;
  Make(options);
  EXPECT_EQ(Step(DecodeOf(2)).kind, Kind::kReplay);
  runs_.clear();

  const GraphDecision decision = Step(DecodeOf(7));
  const GraphDecision expected{
      .kind = Kind::kEager, .reason = EagerReason::kOverBudget, .key = Key(8)};
  EXPECT_EQ(decision, expected);
  EXPECT_THAT(runs_, ElementsAre(Key(8)));  // once: the warm-up was the step
  EXPECT_EQ(backend_.num_live(), 1);
  EXPECT_EQ(set_->report().num_eager_steps(EagerReason::kOverBudget), 1);
  EXPECT_EQ(set_->report().padded_rows(), 1);  // 7 of 8

  EXPECT_EQ(Step(DecodeOf(7)).key, Key(7));  // the capture is not tried again
  EXPECT_EQ(Step(DecodeOf(2)).kind, Kind::kReplay);
  EXPECT_EQ(set_->report().num_replays(), 2);
}

TEST_F(GraphSetTest, EstimateCountsThePoolOnceAndDriverMemoryPerKey) {
  GraphSetOptions options = Options();
  options.query_lens = {1, 4};
  Make(options);
  const GraphSet::StepMaker priced = [&](const GraphKey& key) -> std::function<absl::Status()> {
    return [this, key] {
      runs_.push_back(key);
      backend_.set_price({.pool = 1000 * key.padded_num_tokens, .driver = 10 * key.max_query_len});
      return absl::OkStatus();
    };
  };
  // Trials of the largest key of each kind: 16 x 4 and 16 x 1. Pool 64,000; driver 5 sizes x (40 +
  // 10).
  EXPECT_EQ(*set_->EstimateBytes(priced), 64'000 + 250);
  EXPECT_THAT(runs_, ElementsAre(Key(16, 4), Key(16)));
  EXPECT_EQ(backend_.num_live(), 0);
  EXPECT_TRUE(set_->report().graphs().empty());
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kNotCaptured);
}

TEST_F(GraphSetTest, TheEstimateIsNoMoreThanTheBudget) {
  backend_.set_price({.pool = 1000, .driver = 10});
  GraphSetOptions options = Options();
  options.memory_budget_bytes = 700;
  Make(options);
  EXPECT_EQ(*set_->EstimateBytes(make_step_), 700);
}

TEST_F(GraphSetTest, AFailingTrialFailsTheEstimate) {
  Make(Options());
  step_status_ = absl::ResourceExhaustedError("out of memory");
  EXPECT_EQ(set_->EstimateBytes(make_step_).status(), step_status_);
}

TEST_F(GraphSetTest, CountsEveryStepAsReplayOrEager) {
  MakeCaptured(Options());
  for (int num_seqs = 1; num_seqs <= 17; ++num_seqs) Step(DecodeOf(num_seqs));
  Step({.num_seqs = 2, .num_tokens = 9, .max_query_len = 8});
  Step({.num_seqs = 0});
  const GraphReport& report = set_->report();
  EXPECT_EQ(report.num_steps(), 19);
  EXPECT_EQ(report.num_replays(), 16);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kTooManySeqs), 1);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kQueryTooLong), 1);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kIdle), 1);
  // Through 4: 3, 4 -> 1 padded; through 8: 5..8 -> 3+2+1; through 16: 9..16 -> 7+6+..+1.
  EXPECT_EQ(report.padded_rows(), 1 + 6 + 28);
  EXPECT_EQ(report.Find(Key(8))->num_replays, 4);
  EXPECT_EQ(report.Find(Key(16))->padded_rows, 28);
  EXPECT_EQ(runs_.size(), 16u);
}

TEST_F(GraphSetTest, DecideDoesNotCount) {
  MakeCaptured(Options());
  for (int i = 0; i < 5; ++i) set_->Decide(DecodeOf(3));
  EXPECT_EQ(set_->report().num_steps(), 0);
}

TEST_F(GraphSetTest, GraphsAreDestroyedWithTheSet) {
  MakeCaptured(Options());
  EXPECT_EQ(backend_.num_live(), 5);
  set_.reset();
  EXPECT_EQ(backend_.num_live(), 0);
}

TEST_F(GraphSetTest, AStepInTheSteadyStateAllocatesNothing) {
  fingerprint_.AddValue("a constant with a name longer than a string's own buffer", 1);
  const auto backend = MakeRecordedBackend();
  const auto set = *GraphSet::Create(Options(), backend.get());
  const GraphSet::StepMaker make_step = [](const GraphKey&) {
    return [] { return absl::OkStatus(); };
  };
  ASSERT_TRUE(set->CaptureAll(make_step, fingerprint_).ok());
  Fingerprint current = fingerprint_;

  AllocationCounter allocations;
  bool ok = true;
  for (int num_seqs = 1; num_seqs <= 17; ++num_seqs) {
    const StepShape shape = DecodeOf(num_seqs);
    current.Clear();
    current.AddValue("a constant with a name longer than a string's own buffer", 1);
    const GraphDecision decision = set->Decide(shape);
    if (decision.kind == Kind::kReplay) ok &= set->Replay(decision.key, make_step, current).ok();
    set->Count(decision, shape);
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(ok);
  EXPECT_EQ(set->report().num_replays(), 16);
}

GraphKey Mixed(int num_seqs, int num_tokens) {
  return {
      .padded_num_seqs = num_seqs, .padded_num_tokens = num_tokens, .max_query_len = num_tokens};
}

StepShape MixedOf(int num_seqs, int num_tokens, int max_query_len, int max_seq_len = 100) {
  return {.num_seqs = num_seqs,
          .num_tokens = num_tokens,
          .max_query_len = max_query_len,
          .max_seq_len = max_seq_len};
}

GraphSetOptions MixedOptions(Mode mode = Mode::kEager) {
  GraphSetOptions options = Options(mode);
  options.max_num_seqs = 32;
  options.mixed_tokens = {8, 64, 128};
  options.mixed_sizes = {4, 32};
  return options;
}

TEST_F(GraphSetTest, MixedKeysComeLastAndHaveNoMoreRowsThanTokens) {
  Make(MixedOptions());
  EXPECT_THAT(set_->keys(),
              ElementsAre(Key(16), Key(8), Key(4), Key(2), Key(1), Mixed(32, 128), Mixed(4, 128),
                          Mixed(32, 64), Mixed(4, 64), Mixed(8, 8), Mixed(4, 8)));
}

TEST_F(GraphSetTest, PadsMixedStepToMinimalTokensThenMinimalSequences) {
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    MakeCaptured(MixedOptions(mode));
    EXPECT_EQ(set_->Decide(MixedOf(1, 2, 2)).key, Mixed(4, 8));
    EXPECT_EQ(set_->Decide(MixedOf(4, 8, 5)).key, Mixed(4, 8));  // exactly full
    EXPECT_EQ(set_->Decide(MixedOf(5, 8, 4)).key, Mixed(8, 8));
    EXPECT_EQ(set_->Decide(MixedOf(7, 8, 2)).key, Mixed(8, 8));
    EXPECT_EQ(set_->Decide(MixedOf(4, 9, 6)).key, Mixed(4, 64));
    EXPECT_EQ(set_->Decide(MixedOf(1, 64, 64)).key, Mixed(4, 64));
    EXPECT_EQ(set_->Decide(MixedOf(32, 64, 33)).key, Mixed(32, 64));
    EXPECT_EQ(set_->Decide(MixedOf(2, 128, 100)).key, Mixed(4, 128));
    EXPECT_EQ(set_->Decide(MixedOf(2, 128, 100)).reason,
              mode == Mode::kOff ? EagerReason::kDisabled : EagerReason::kNone);
    set_.reset();
  }
}

TEST_F(GraphSetTest, DecodesUseMixedGraphsOnlyIfNoOtherGraphHoldsTheStep) {
  MakeCaptured(MixedOptions());
  for (int num_seqs = 1; num_seqs <= 16; ++num_seqs) {
    EXPECT_EQ(set_->Decide(DecodeOf(num_seqs)).key.max_query_len, 1);
  }
  EXPECT_EQ(set_->Decide(DecodeOf(17)).key, Mixed(32, 64));
  EXPECT_EQ(set_->Decide(DecodeOf(32)).key, Mixed(32, 64));
  EXPECT_EQ(ReasonOf(DecodeOf(33)), EagerReason::kTooManySeqs);
  // The common prefix is to be read once, and no mixed graph does that.
  EXPECT_EQ(ReasonOf(CascadeOf(17)), EagerReason::kTooManySeqs);
  EXPECT_TRUE(set_->Decide(CascadeOf(17)).key.cascade);
}

TEST_F(GraphSetTest, DraftsAreVerifiedByTheGraphsOfTheirQueryLength) {
  GraphSetOptions options = MixedOptions();
  options.query_lens = {1, 4};
  MakeCaptured(options);
  EXPECT_EQ(set_->Decide(MixedOf(3, 8, 4)).key, Key(4, 4));
  EXPECT_EQ(set_->Decide(MixedOf(3, 8, 5)).key, Mixed(4, 8));
}

TEST_F(GraphSetTest, ReasonIsUnchangedIfNoMixedGraphHoldsTheStep) {
  MakeCaptured(MixedOptions());
  EXPECT_EQ(ReasonOf(MixedOf(3, 129, 100)), EagerReason::kQueryTooLong);
  EXPECT_EQ(ReasonOf(MixedOf(33, 64, 2)), EagerReason::kTooManySeqs);
  EXPECT_EQ(ReasonOf(MixedOf(3, 64, 60, 1024)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(MixedOf(3, 64, 60, 1025)), EagerReason::kQueryTooLong);
  StepShape embeddings = MixedOf(3, 64, 60);
  embeddings.input = StepInput::kEmbeddings;
  EXPECT_EQ(ReasonOf(embeddings), EagerReason::kNotCaptured);  // but the step is padded like tokens
  EXPECT_EQ(set_->Decide(embeddings).key.padded_num_seqs, 4);
  EXPECT_EQ(set_->Decide(MixedOf(3, 129, 100)).key.padded_num_tokens, 129);  // live counts
}

// With MixedInputs::kShared, a model that takes embeddings captures half the mixed graphs that it
// captures with kApart; the padding of all steps is unchanged.
TEST_F(GraphSetTest, MixedGraphsOfEmbeddingsMayServeTokensToo) {
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    GraphSetOptions options = MixedOptions(mode);
    Make(options);
    const size_t num_keys = set_->keys().size();
    set_.reset();
    const size_t num_rows_keys = options.sizes.size();
    ASSERT_GT(num_keys, num_rows_keys);
    options.inputs = {StepInput::kTokens, StepInput::kEmbeddings};
    options.min_embedding_query_len = 2;
    MakeCaptured(options);
    EXPECT_EQ(set_->keys().size(), num_rows_keys + 2 * (num_keys - num_rows_keys));
    const GraphDecision apart = set_->Decide(MixedOf(3, 60, 50));
    EXPECT_EQ(apart.key, Mixed(4, 64));
    set_.reset();
    options.mixed_inputs = GraphSetOptions::MixedInputs::kShared;
    MakeCaptured(options);
    EXPECT_EQ(set_->keys().size(), num_keys);
    GraphKey shared = Mixed(4, 64);
    shared.input = StepInput::kEmbeddings;
    StepShape embeddings = MixedOf(3, 60, 50);
    embeddings.input = StepInput::kEmbeddings;
    for (const StepShape& shape : {MixedOf(3, 60, 50), embeddings}) {
      EXPECT_EQ(set_->Decide(shape).key, shared);
      EXPECT_EQ(set_->Decide(shape).kind, apart.kind);
      EXPECT_EQ(set_->Decide(shape).reason, apart.reason);
    }
    // Decode steps with tokens keep the token graphs.
    const StepShape decode = {.num_seqs = 3, .num_tokens = 3, .max_query_len = 1};
    EXPECT_EQ(set_->Decide(decode).key, Key(4));
    set_.reset();
  }
}

TEST_F(GraphSetTest, RejectsMixedKeysOfOtherSizes) {
  Make(MixedOptions(Mode::kLazy));
  GraphKey split = Mixed(4, 64);
  split.max_query_len = 32;
  GraphKey cascade = Mixed(4, 64);
  cascade.cascade = true;
  for (const GraphKey& key :
       {Mixed(5, 64), Mixed(32, 8), Mixed(4, 65), Mixed(64, 64), split, cascade, Mixed(0, 64)}) {
    EXPECT_EQ(set_->Replay(key, make_step_, fingerprint_).status().code(),
              absl::StatusCode::kInvalidArgument)
        << key;
  }
  EXPECT_THAT(runs_, IsEmpty());
  EXPECT_EQ(Step(MixedOf(2, 40, 39)).kind, Kind::kReplay);
  EXPECT_EQ(set_->report().Find(Mixed(4, 64))->num_replays, 1);
  EXPECT_EQ(set_->report().padded_rows(), 2);
}

TEST_F(GraphSetTest, CapturesDecodesBeforeMixedStepsUnderABudget) {
  backend_.set_price({.pool = 0, .driver = 10});
  GraphSetOptions options = MixedOptions();
  options.memory_budget_bytes = 70;  // 5 decode graphs, 2 mixed graphs
  MakeCaptured(options);
  EXPECT_EQ(ReasonOf(DecodeOf(1)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(MixedOf(3, 100, 90)), EagerReason::kNone);
  EXPECT_EQ(ReasonOf(MixedOf(3, 50, 40)), EagerReason::kOverBudget);
  EXPECT_EQ(set_->Decide(MixedOf(3, 50, 40)).key.padded_num_tokens, 50);  // live counts
  EXPECT_EQ(set_->report().graphs().size(), 7u);
}

TEST_F(GraphSetTest, TheEstimateAddsThePoolOfMixedStepsAndCountsTheirKeys) {
  Make(MixedOptions());
  const GraphSet::StepMaker priced = [&](const GraphKey& key) -> std::function<absl::Status()> {
    return [this, key] {
      runs_.push_back(key);
      backend_.set_price({.pool = 1000 * key.padded_num_tokens, .driver = key.max_query_len});
      return absl::OkStatus();
    };
  };
  // Pools of 16 and 128 tokens; driver memory 5 x 1 and 6 x 128.
  EXPECT_EQ(*set_->EstimateBytes(priced), 16'000 + 128'000 + 5 + 768);
  EXPECT_THAT(runs_, ElementsAre(Key(16), Mixed(32, 128)));
}

using GraphSetDeathTest = GraphSetTest;

TEST_F(GraphSetDeathTest, DiesOnImpossibleShapes) {
  Make(Options());
  EXPECT_DEATH(set_->Decide({.num_seqs = -1}), "-1 vs. 0");
  EXPECT_DEATH(set_->Decide({.num_seqs = 1, .num_tokens = -1}), "-1 vs. 0");
  EXPECT_DEATH(set_->Decide({.num_seqs = 1, .num_tokens = 1, .max_query_len = 0}), "0 vs. 1");
  EXPECT_DEATH(set_->Decide({.num_seqs = 2, .num_tokens = 7, .max_query_len = 3}),
               "7 vs. 6.*more tokens than rows hold");
  EXPECT_DEATH(set_->Decide({.num_seqs = 0, .num_tokens = 1}), "more tokens than rows hold");
}

}  // namespace
}  // namespace reprise
