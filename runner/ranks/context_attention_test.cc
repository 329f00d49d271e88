#include "reprise/runner/ranks/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/distributed/testing/thread_ranks.h"

namespace reprise {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int kWorld = 3;
constexpr int64_t kTokens = 5;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = 7;

// The result of each rank over its own keys. The last rank has no key for token 2, and no rank has
// a key for token 4.
struct Found {
  Found() {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    for (int rank = 0; rank < kWorld; ++rank) {
      outs.push_back(at::randn({kTokens, kHeads, kHeadDim}));
      lses.push_back(at::randn({kTokens, kHeads}) * 3);
      lses[rank].select(0, 4).fill_(kNone);
      outs[rank].select(0, 4).zero_();
    }
    lses[2].select(0, 2).fill_(kNone);
  }
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> lses;
};

TEST(MergeOverRanksTest, AllRanksGetTheSoftmaxOfAllKeys) {
  const Found found;
  // [world, tokens, heads]; the weights of token 4 are 0.
  const at::Tensor weights = at::softmax(at::stack(found.lses).to(at::kDouble), 0).nan_to_num(0);
  const at::Tensor expected =
      (at::stack(found.outs).to(at::kDouble) * weights.unsqueeze(-1)).sum(0).to(at::kFloat);
  const at::Tensor expected_lse =
      at::logsumexp(at::stack(found.lses).to(at::kDouble), 0).to(at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<AttentionPart> merged(kWorld);
    const auto run = [&](Collectives& context) -> absl::Status {
      const int rank = context.ranks().rank;
      const absl::StatusOr<AttentionPart> part =
          MergeOverRanks(context,
                         {.num_tokens = kTokens,
                          .num_heads = kHeads,
                          .head_dim_v = kHeadDim,
                          .options = at::TensorOptions(dtype)},
                         [&](const at::Tensor& out, const at::Tensor& lse) {
                           out.copy_(found.outs[rank]);
                           lse.copy_(found.lses[rank]);
                           return absl::OkStatus();
                         });
      if (part.ok()) merged[rank] = *part;
      return part.status();
    };
    ASSERT_THAT(RunThreadRanks(kWorld, run), Each(absl::OkStatus()));
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_TRUE(at::allclose(merged[0].out.to(at::kFloat), expected, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(merged[0].lse, expected_lse, 1e-5, 1e-5));
    EXPECT_EQ(merged[0].out.scalar_type(), dtype);
    EXPECT_TRUE(merged[0].out.select(0, 4).eq(0).all().item<bool>());
    EXPECT_TRUE(merged[0].lse.select(0, 4).isneginf().all().item<bool>());
    for (int rank = 1; rank < kWorld; ++rank) {
      EXPECT_TRUE(merged[rank].out.equal(merged[0].out)) << rank;
      EXPECT_TRUE(merged[rank].lse.equal(merged[0].lse)) << rank;
    }
  }
}

TEST(MergeOverRanksTest, ReturnsTheErrorOfAttend) {
  const std::vector<absl::Status> results = RunThreadRanks(2, [&](Collectives& context) {
    return MergeOverRanks(context, {.num_tokens = 1, .num_heads = 1, .head_dim_v = 1},
                          [&](const at::Tensor&, const at::Tensor&) -> absl::Status {
                            return absl::InvalidArgumentError("no attention today");
                          })
        .status();
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.message(), "no attention today");
  }
}

TEST(CopyFromFirstRankTest, AllRanksGetTheTensorOfRankZero) {
  const std::vector<absl::Status> results = RunThreadRanks(kWorld, [](Collectives& context) {
    const at::Tensor logits = at::full({2, 5}, 7 + context.ranks().rank);
    const absl::Status status = CopyFromFirstRank(&context, logits);
    EXPECT_TRUE(logits.equal(at::full({2, 5}, 7)));
    return status;
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  const at::Tensor alone = at::full({2}, 3);
  EXPECT_TRUE(CopyFromFirstRank(nullptr, alone).ok());
  EXPECT_TRUE(alone.equal(at::full({2}, 3)));
}

TEST(OfFirstRankTest, AcceptsAnyStridesAndReturnsTheTensorWithOneRank) {
  const std::vector<absl::Status> results = RunThreadRanks(kWorld, [](Collectives& ranks) {
    const at::Tensor columns = at::full({5, 2}, 7 + ranks.ranks().rank).t();
    const auto same = OfFirstRank(&ranks, columns);
    if (!same.ok()) return same.status();
    EXPECT_TRUE(same->is_contiguous());
    EXPECT_TRUE(same->equal(at::full({2, 5}, 7)));
    return absl::OkStatus();
  });
  EXPECT_THAT(results, Each(absl::OkStatus()));
  const at::Tensor alone = at::full({5, 2}, 3).t();
  EXPECT_TRUE(OfFirstRank(nullptr, alone)->is_same(alone));
}

TEST(CheckShardingsTest, RejectsWeightsAndKeysShardedOverTheSameRanks) {
  const std::vector<absl::Status> results = RunThreadRanks(2, [](Collectives& ranks) {
    EXPECT_TRUE(CheckShardings(&ranks, nullptr).ok());
    EXPECT_TRUE(CheckShardings(nullptr, &ranks).ok());
    EXPECT_TRUE(CheckShardings(nullptr, nullptr).ok());
    EXPECT_TRUE(CheckShardings(&ranks, OneRank().get()).ok());
    return CheckShardings(&ranks, &ranks);
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("got one of 2 ranks as both"));
  }
  const std::vector<absl::Status> grid = RunThreadGrid(4, /*context_ranks=*/2, [](RankGrid& ranks) {
    return CheckShardings(&ranks.weights(), &ranks.context());
  });
  EXPECT_THAT(grid, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace reprise
