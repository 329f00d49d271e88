#include "reprise/distributed/testing/collectives_suite.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr at::ScalarType kSummed[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kLong};
constexpr at::ScalarType kMoved[] = {at::kFloat, at::kBFloat16,      at::kHalf, at::kInt,
                                     at::kLong,  at::kFloat8_e4m3fn, at::kByte, at::kBool};

// Returns small integers on the host that depend on rank and position. Sums of a few of them are
// exact in every dtype of kSummed.
at::Tensor Values(at::IntArrayRef sizes, int rank) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return at::arange(count, at::kLong).mul(7).add(3 * rank + 1).remainder(11).view(sizes);
}

at::Tensor SumOfValues(at::IntArrayRef sizes, int world) {
  at::Tensor sum = at::zeros(sizes, at::kLong);
  for (int rank = 0; rank < world; ++rank) sum += Values(sizes, rank);
  return sum;
}

::testing::AssertionResult Holds(const at::Tensor& tensor, const at::Tensor& expected) {
  // Compares bytes, because fp8 has no comparison operator.
  const at::Tensor got = tensor.cpu(), want = expected.to(got.scalar_type());
  if (got.view({-1}).view(at::kByte).equal(want.contiguous().view({-1}).view(at::kByte))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "got " << got.to(at::kFloat).sum().item<float>() << " in all, expected "
         << want.to(at::kFloat).sum().item<float>();
}

absl::Status ExpectSums(Collectives& ranks, at::Device device) {
  const auto [rank, world] = ranks.ranks();
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {1}, {3}, {17}, {5, 13}, {1024}, {4, 4099}, {3, 1, 7}, {2, 512}, {8, 4096}, {30, 1001}};
  for (at::ScalarType dtype : kSummed) {
    for (const auto& shape : shapes) {
      SCOPED_TRACE(absl::StrCat("AllReduce ", at::toString(dtype), " ", c10::str(shape)));
      at::Tensor tensor = Values(shape, rank).to(dtype).to(device);
      REPRISE_RETURN_IF_ERROR(ranks.AllReduce(tensor));
      EXPECT_TRUE(Holds(tensor, SumOfValues(shape, world)));

      REPRISE_ASSIGN_OR_RETURN(at::Tensor buffer, ranks.NewBuffer(shape, dtype, device));
      EXPECT_TRUE(Holds(buffer, at::zeros(shape)));
      for (int round = 0; round < 2; ++round) {
        buffer.copy_(Values(shape, rank));
        REPRISE_RETURN_IF_ERROR(ranks.AllReduce(buffer));
        EXPECT_TRUE(Holds(buffer, SumOfValues(shape, world))) << "in a buffer, round " << round;
      }

      std::vector<int64_t> stacked = {world};
      stacked.insert(stacked.end(), shape.begin(), shape.end());
      const at::Tensor in = Values(stacked, rank).to(dtype).to(device);
      at::Tensor out = at::empty(shape, in.options());
      REPRISE_RETURN_IF_ERROR(ranks.ReduceScatter(in, out));
      EXPECT_TRUE(Holds(out, SumOfValues(stacked, world)[rank])) << "scattered";
      EXPECT_TRUE(Holds(in, Values(stacked, rank))) << "the input has changed";
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectMoves(Collectives& ranks, at::Device device) {
  const auto [rank, world] = ranks.ranks();
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {5, 13}, {4099}};
  for (at::ScalarType dtype : kMoved) {
    for (const auto& shape : shapes) {
      SCOPED_TRACE(absl::StrCat(at::toString(dtype), " ", c10::str(shape)));
      std::vector<at::Tensor> rows;
      for (int other = 0; other < world; ++other) rows.push_back(Values(shape, other).to(dtype));
      const at::Tensor in = rows[rank].to(device);
      at::Tensor expected = at::empty(at::stack(rows, 0).sizes(), in.options().device(at::kCPU));
      for (int other = 0; other < world; ++other) expected[other].copy_(rows[other]);

      at::Tensor out = at::empty(expected.sizes(), in.options());
      REPRISE_RETURN_IF_ERROR(ranks.AllGather(in, out));
      EXPECT_TRUE(Holds(out, expected));
      at::Tensor in_place = at::zeros_like(out), own = in_place[rank];
      own.copy_(in);
      REPRISE_RETURN_IF_ERROR(ranks.AllGather(own, in_place));
      EXPECT_TRUE(Holds(in_place, expected)) << "in place";

      for (int root = 0; root < world; ++root) {
        at::Tensor tensor = in.clone();
        REPRISE_RETURN_IF_ERROR(ranks.Broadcast(tensor, root));
        EXPECT_TRUE(Holds(tensor, rows[root])) << "root " << root;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpectPlainResults(Collectives& ranks, at::Device device) {
  // All ranks share the cores of one machine.
  at::set_num_threads(1);
  REPRISE_RETURN_IF_ERROR(ExpectSums(ranks, device));
  REPRISE_RETURN_IF_ERROR(ExpectMoves(ranks, device));
  return ranks.Barrier();
}

absl::Status ExpectEqualBitsOnAllRanks(Collectives& ranks, at::Device device) {
  const auto [rank, world] = ranks.ranks();
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int64_t size : {7, 4096, 100003}) {
      SCOPED_TRACE(absl::StrCat(at::toString(dtype), " [", size, "]"));
      at::Tensor sum = at::zeros({size}, at::kDouble), largest = at::zeros({size}, at::kDouble);
      at::Tensor tensor;
      for (int other = 0; other < world; ++other) {
        const at::Tensor values =
            at::randn({size}, at::make_generator<at::CPUGeneratorImpl>(100 + other)).to(dtype);
        if (other == rank) tensor = values.to(device);
        sum += values.to(at::kDouble);
        largest += values.to(at::kDouble).abs();
      }
      REPRISE_RETURN_IF_ERROR(ranks.AllReduce(tensor));
      at::Tensor all = at::empty({world, size}, tensor.options());
      REPRISE_RETURN_IF_ERROR(ranks.AllGather(tensor, all));
      for (int other = 0; other < world; ++other) {
        EXPECT_TRUE(all[other].equal(tensor)) << "rank " << other << " has a different sum";
      }
      // There are at most world - 1 roundings, each of at most epsilon / 2 of a partial sum.
      const double epsilon = dtype == at::kFloat ? 1.2e-7 : dtype == at::kHalf ? 9.8e-4 : 7.9e-3;
      const at::Tensor error = (tensor.cpu().to(at::kDouble) - sum).abs();
      EXPECT_TRUE((error <= largest * (epsilon / 2 * world)).all().item<bool>());
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectRefusalsToChangeNothing(Collectives& ranks, at::Device device) {
  const auto [rank, world] = ranks.ranks();
  at::Tensor one = at::full({3}, 1.0f, device);
  at::Tensor flags = at::zeros({3}, one.options().dtype(at::kBool));
  EXPECT_EQ(ranks.AllReduce(flags).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ranks.AllGather(one, one).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ranks.Broadcast(one, world).code(), absl::StatusCode::kInvalidArgument);
  at::Tensor elsewhere = at::zeros({3}, at::kMeta);
  EXPECT_EQ(ranks.AllReduce(elsewhere).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ranks.status().ok()) << ranks.status();
  REPRISE_RETURN_IF_ERROR(ranks.AllReduce(one));
  EXPECT_TRUE(Holds(one, at::full({3}, static_cast<float>(world))));
  return absl::OkStatus();
}

}  // namespace reprise
