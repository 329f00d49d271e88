#include "reprise/runner/ranks/replicated_model.h"

#include <ATen/ops/full.h>

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"

namespace reprise {
namespace {

using testing::Each;

// A model whose results depend on its rank.
class RankModel final : public Model {
 public:
  explicit RankModel(float rank) : rank_(rank) { spec_.vocab_size = 3; }
  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_RETURN_IF_ERROR(step.KeepHidden(Strided(rank_ + 10)));
    return Strided(rank_);
  }

 private:
  static at::Tensor Strided(float value) { return at::full({3, 2}, value).t(); }

  ModelSpec spec_;
  float rank_;
};

TEST(ReplicatedModelTest, AllRanksReturnTheResultsOfRankZero) {
  const auto run = [](Collectives& collectives) -> absl::Status {
    const auto rank = static_cast<float>(collectives.ranks().rank);
    const std::unique_ptr<Model> model =
        ReplicateOverRanks(std::make_unique<RankModel>(rank), &collectives);
    EXPECT_EQ(model->spec().vocab_size, 3);
    const Step step{Step::Parts{}};
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, model->Forward(step));
    EXPECT_TRUE(logits.equal(at::full({2, 3}, 0.0f))) << logits;
    at::Tensor hidden;
    const Step with_heads = step.WithHidden([&](const Step&, const at::Tensor& kept) {
      hidden = kept;
      return absl::OkStatus();
    });
    REPRISE_RETURN_IF_ERROR(model->Forward(with_heads).status());
    EXPECT_TRUE(hidden.equal(at::full({2, 3}, 10.0f))) << hidden;
    return absl::OkStatus();
  };
  EXPECT_THAT(RunThreadRanks(3, run), Each(absl::OkStatus()));
}

TEST(ReplicatedModelTest, OneRankReturnsTheModelItself) {
  auto model = std::make_unique<RankModel>(0);
  const Model* const itself = model.get();
  EXPECT_EQ(ReplicateOverRanks(std::move(model), nullptr).get(), itself);
}

}  // namespace
}  // namespace reprise
