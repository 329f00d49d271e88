// Heads are on each rank as a whole, and each rank may round in another way: all draw the drafts of
// rank 0, and so accept the same.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/model.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {
namespace {

using ::testing::Each;
using Texts = std::map<int64_t, std::vector<int32_t>>;

constexpr int kVocab = 61;
constexpr int kMaxSeqLen = 64;
constexpr int kNumDrafts = 3;

LayeredModelOptions ModelOptions() {
  return {
      .layers =
          {{.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}}},
      .hidden = LayeredModelOptions::Hidden::kPosition,
      .vocab_size = kVocab,
      .max_position = kMaxSeqLen,
      .seed = 5};
}

// A model of which every rank has all: their logits are averaged, so a rank that has come elsewhere
// in its text changes those of all.
class AveragedModel final : public Model {
 public:
  AveragedModel(std::unique_ptr<Model> model, Collectives* collectives)
      : model_(std::move(model)), collectives_(*collectives) {}

  const ModelSpec& spec() const override { return model_->spec(); }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, model_->Forward(step));
    return Averaged(logits);
  }

 private:
  absl::StatusOr<at::Tensor> Averaged(const at::Tensor& logits) const {
    at::Tensor sum = logits.clone();
    REPRISE_RETURN_IF_ERROR(collectives_.AllReduce(sum));
    return sum.div_(collectives_.ranks().world);
  }

  std::unique_ptr<Model> model_;
  Collectives& collectives_;
};

// Logits that are nearly a tie: on rank 0 the right token wins, on others the one behind it.
at::Tensor Tied(const at::Tensor& right, int rank) {
  at::Tensor logits = at::zeros({right.size(0), kVocab});
  logits.scatter_(1, ((right + 1) % kVocab).unsqueeze(1), 1 - 5e-4 + 1e-3 * rank);
  logits.scatter_(1, right.unsqueeze(1), 1);
  return logits;
}

// Knows the text of one sequence.
class KnowsText final : public DraftHeads {
 public:
  KnowsText(const std::vector<int32_t>& text, int rank)
      : text_(at::zeros({kMaxSeqLen + kNumDrafts + 2}, at::kLong)), rank_(rank) {
    for (size_t i = 0; i < text.size(); ++i) text_[static_cast<int64_t>(i)].fill_(text[i]);
  }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    // The newest token follows the state's.
    const at::Tensor position = step.hidden.argmax(1);
    return HeadsOutput{.logits = Tied(text_.index_select(0, position + 2 + step.pass), rank_)};
  }

 private:
  at::Tensor text_;
  int rank_;
};

// The model itself.
class KnowsModel final : public DraftHeads {
 public:
  explicit KnowsModel(int rank) : model_(ModelOptions()), rank_(rank) {}

  absl::Span<const LayerSpec> layers() const override { return model_.spec().layers; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, model_.Forward(*step.step));
    return HeadsOutput{.logits = Tied(logits.argmax(1), rank_)};
  }

 private:
  LayeredModel model_;
  int rank_;
};

Request TheRequest() { return {.prompt = {7, 11, 13}, .max_new_tokens = 50}; }

ModelEngineOptions Options(Collectives* collectives, DraftHeads* heads) {
  ModelEngineOptions options = {.runner = {.max_num_seqs = 2,
                                           .max_num_tokens = 32,
                                           .max_seq_len = kMaxSeqLen,
                                           .cache = {.block_size = 4, .size = NumBlocks{40}},
                                           .ranks = {.collectives = collectives}}};
  if (heads == nullptr) return options;
  options.runner.speculation = {.max_drafts = kNumDrafts, .proposer = HeadsProposer{*heads}};
  options.scheduler.speculation = SpeculationPolicy{.num_drafts = kNumDrafts};
  return options;
}

TEST(HeadsOverRanksTest, AllRanksDrawTheDraftsOfTheFirst) {
  LayeredModel plain(ModelOptions());
  const auto engine = CreateEngine(&plain, Options(nullptr, nullptr));
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Add(TheRequest()).ok());
  const Texts want = RunAll(**engine);
  std::vector<int32_t> text = TheRequest().prompt;
  text.insert(text.end(), want.begin()->second.begin(), want.begin()->second.end());

  for (const bool attend : {false, true}) {
    const auto run = [&](Collectives& collectives) -> absl::Status {
      const int rank = collectives.ranks().rank;
      std::unique_ptr<Model> model;
      std::unique_ptr<DraftHeads> heads;
      if (attend) {
        model = std::make_unique<LayeredModel>(ModelOptions());
        heads = std::make_unique<KnowsModel>(rank);
      } else {
        model = std::make_unique<LayeredModel>(ModelOptions());
        heads = std::make_unique<KnowsText>(text, rank);
      }
      model = std::make_unique<AveragedModel>(std::move(model), &collectives);
      const ModelEngineOptions options = Options(&collectives, heads.get());
      if (rank > 0) return FollowEngine(model.get(), options);
      REPRISE_ASSIGN_OR_RETURN(const auto ranked, CreateEngine(model.get(), options));
      REPRISE_RETURN_IF_ERROR(ranked->Add(TheRequest()).status());
      EXPECT_EQ(RunAll(*ranked), want);
      EXPECT_GT(ranked->metrics().speculation.num_accepted, 20);
      return absl::OkStatus();
    };
    EXPECT_THAT(RunThreadRanks(2, run), Each(absl::OkStatus())) << (attend ? "attending" : "plain");
  }
}

}  // namespace
}  // namespace reprise
