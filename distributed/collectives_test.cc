#include "reprise/distributed/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Rank 1 of three. Records the calls that reach the implementation.
class Recorded final : public Collectives {
 public:
  Recorded() : Collectives({.rank = 1, .world = 3}) {}
  std::string Fingerprint() const override { return "recorded"; }
  absl::Status status() const override { return failure; }
  void Fail(const absl::Status& why) override { failure = why; }

  std::vector<std::string> calls;
  absl::Status failure;

 protected:
  absl::Status Record(std::string call) {
    calls.push_back(std::move(call));
    return absl::OkStatus();
  }
  absl::Status DoAllReduce(at::Tensor&) override { return Record("AllReduce"); }
  absl::Status DoAllGather(const at::Tensor&, at::Tensor&) override { return Record("AllGather"); }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override {
    return Record("ReduceScatter");
  }
  absl::Status DoBroadcast(at::Tensor&, int) override { return Record("Broadcast"); }
  absl::Status DoBarrier() override { return Record("Barrier"); }
};

void ExpectInvalid(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(OneRankTest, ResultsEqualTheInputs) {
  auto one = OneRank();
  EXPECT_EQ(one->ranks(), (Ranks{.rank = 0, .world = 1}));
  at::Tensor in = at::arange(6, at::kFloat).view({2, 3});
  at::Tensor sum = in.clone(), gathered = at::zeros({1, 2, 3}), part = at::zeros({3});
  EXPECT_TRUE(one->AllReduce(sum).ok());
  EXPECT_TRUE(sum.equal(in));
  EXPECT_TRUE(one->AllGather(in, gathered).ok());
  EXPECT_TRUE(gathered[0].equal(in));
  at::Tensor own = gathered[0];
  EXPECT_TRUE(one->AllGather(own, gathered).ok()) << "in place";
  at::Tensor row = in.slice(0, 1, 2).clone();
  EXPECT_TRUE(one->ReduceScatter(row, part).ok());
  EXPECT_TRUE(part.equal(in[1]));
  EXPECT_TRUE(one->Broadcast(sum, 0).ok());
  EXPECT_TRUE(sum.equal(in));
  EXPECT_TRUE(one->Barrier().ok());
  EXPECT_TRUE(one->status().ok());
}

TEST(OneRankTest, CallsFailAfterFail) {
  auto one = OneRank();
  one->Fail(absl::InternalError("first"));
  one->Fail(absl::InternalError("second"));
  EXPECT_EQ(one->status(), absl::InternalError("first"));
  EXPECT_EQ(one->Barrier(), absl::InternalError("first"));
}

TEST(OneRankTest, NewBufferIsZeroed) {
  auto buffer = OneRank()->NewBuffer({3, 2}, at::kBFloat16, at::kCPU);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(buffer->equal(at::zeros({3, 2}, at::kBFloat16)));
  ExpectInvalid(OneRank()->NewBuffer({3, -2}, at::kFloat, at::kCPU).status(), "sizes");
}

TEST(CollectivesTest, EmptyTensorsSendNothing) {
  Recorded ranks;
  at::Tensor empty = at::zeros({0, 4}), all = at::zeros({3, 0, 4});
  EXPECT_TRUE(ranks.AllReduce(empty).ok());
  EXPECT_TRUE(ranks.AllGather(empty, all).ok());
  EXPECT_TRUE(ranks.ReduceScatter(all, empty).ok());
  EXPECT_TRUE(ranks.Broadcast(empty, 2).ok());
  EXPECT_TRUE(ranks.calls.empty());
}

TEST(CollectivesTest, ValidArgumentsReachTheImplementation) {
  Recorded ranks;
  at::Tensor one = at::zeros({4}), all = at::zeros({3, 4}), scalar = at::zeros({});
  at::Tensor own = all[1], scalars = at::zeros({3});
  EXPECT_TRUE(ranks.AllReduce(one).ok());
  EXPECT_TRUE(ranks.AllGather(one, all).ok());
  EXPECT_TRUE(ranks.AllGather(own, all).ok());
  EXPECT_TRUE(ranks.AllGather(scalar, scalars).ok());
  EXPECT_TRUE(ranks.ReduceScatter(all, one).ok());
  EXPECT_TRUE(ranks.Broadcast(one, 2).ok());
  EXPECT_TRUE(ranks.Barrier().ok());
  EXPECT_THAT(ranks.calls,
              ::testing::ElementsAre("AllReduce", "AllGather", "AllGather", "AllGather",
                                     "ReduceScatter", "Broadcast", "Barrier"));
}

TEST(CollectivesTest, RejectsInvalidArgumentsWithoutSending) {
  Recorded ranks;
  at::Tensor none, one = at::zeros({4}), all = at::zeros({3, 4}), two = at::zeros({2, 4});
  at::Tensor strided = at::zeros({4, 4}).t(), flags = at::zeros({4}, at::kBool);
  at::Tensor halves = at::zeros({3, 4}, at::kHalf), third = all[2];
  ExpectInvalid(ranks.AllReduce(none), "tensor is not defined");
  ExpectInvalid(ranks.AllReduce(strided), "tensor must be contiguous");
  ExpectInvalid(ranks.AllReduce(flags), "tensor has the wrong dtype");
  ExpectInvalid(ranks.AllGather(one, two), "out must be [world, sizes of in]: expected [3, 4]");
  ExpectInvalid(ranks.AllGather(one, one), "out must be [world, sizes of in]");
  ExpectInvalid(ranks.AllGather(one, halves), "out has the wrong dtype");
  ExpectInvalid(ranks.AllGather(third, all), "in overlaps out");
  ExpectInvalid(ranks.ReduceScatter(two, one), "in must be [world, sizes of out]");
  ExpectInvalid(ranks.ReduceScatter(all, third), "in overlaps out");
  at::Tensor all_flags = at::zeros({3, 4}, at::kBool);
  ExpectInvalid(ranks.ReduceScatter(all_flags, flags), "in has the wrong dtype");
  ExpectInvalid(ranks.Broadcast(one, 3), "root must be a rank: expected [0, 3), got 3");
  ExpectInvalid(ranks.Broadcast(one, -1), "root");
  ExpectInvalid(ranks.Broadcast(strided, 0), "tensor must be contiguous");
  EXPECT_TRUE(ranks.calls.empty());
}

// An implementation that always returns arguments for a push all-reduce.
class Lending final : public Collectives {
 public:
  Lending() : Collectives({.rank = 1, .world = 3}) {}
  std::string Fingerprint() const override { return "lending"; }

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  std::optional<PushAllReduceArgs> DoPushAllReduce(const at::Tensor& tensor) override {
    return PushAllReduceArgs{.num_bytes = static_cast<int64_t>(tensor.nbytes()),
                             .rank = ranks().rank};
  }
  absl::Status DoAllGather(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

TEST(CollectivesTest, PushAllReduceChecksArgumentsLikeAllReduce) {
  Lending ranks;
  const auto sum = ranks.PushAllReduce(at::zeros({3, 4}));
  ASSERT_TRUE(sum.ok() && sum->has_value()) << sum.status();
  EXPECT_EQ((*sum)->num_bytes, 48);
  EXPECT_EQ((*sum)->rank, 1);
  const auto empty = ranks.PushAllReduce(at::zeros({0, 4}));
  EXPECT_TRUE(empty.ok() && !empty->has_value()) << empty.status();
  ExpectInvalid(ranks.PushAllReduce(at::Tensor()).status(), "tensor is not defined");
  ExpectInvalid(ranks.PushAllReduce(at::zeros({4, 4}).t()).status(), "tensor must be contiguous");
  ExpectInvalid(ranks.PushAllReduce(at::zeros({4}, at::kBool)).status(),
                "tensor has the wrong dtype");
  const auto none = OneRank()->PushAllReduce(at::zeros({4}));
  EXPECT_TRUE(none.ok() && !none->has_value()) << none.status();
}

TEST(CollectivesTest, EveryCallReturnsTheFirstFailure) {
  Recorded ranks;
  ranks.failure = absl::UnavailableError("rank 2 has ended");
  at::Tensor one = at::zeros({4}), all = at::zeros({3, 4});
  EXPECT_EQ(ranks.AllReduce(one), ranks.failure);
  EXPECT_EQ(ranks.PushAllReduce(one).status(), ranks.failure);
  EXPECT_EQ(ranks.AllGather(one, all), ranks.failure);
  EXPECT_EQ(ranks.ReduceScatter(all, one), ranks.failure);
  EXPECT_EQ(ranks.Broadcast(one, 0), ranks.failure);
  EXPECT_EQ(ranks.Barrier(), ranks.failure);
  EXPECT_EQ(ranks.NewBuffer({1}, at::kFloat, at::kCPU).status(), ranks.failure);
  EXPECT_TRUE(ranks.calls.empty());
}

}  // namespace
}  // namespace reprise
