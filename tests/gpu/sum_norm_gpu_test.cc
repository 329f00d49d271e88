// Sums over two GPUs that the norm behind them does, against AllReduce() and AddRmsNorm().

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ranks/sum_norm.h"
#include "tests/gpu/two_gpus.h"

namespace reprise {
namespace {

constexpr float kEps = 1e-5f;

struct NormCase {
  int64_t num_rows = 1, size = 4096;
  at::ScalarType dtype = at::kBFloat16;
  NormWeight form = NormWeight::kScale;

  int64_t bytes() const { return num_rows * size * static_cast<int64_t>(c10::elementSize(dtype)); }
  // By the default limits, whole vectors, and one SM a row.
  bool is_fused() const {
    const int64_t row_bytes = bytes() / num_rows;
    return dtype != at::kHalf && row_bytes % 16 == 0 && bytes() <= int64_t{512} << 10 &&
           num_rows <= at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  }
};

std::vector<NormCase> AllCases() {
  std::vector<NormCase> cases;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kHalf}) {
    // Of one vector; of fewer than a warp; odd ones; of more vectors than a CTA has threads.
    for (const auto& [num_rows, size] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 4096},   {1, 8},    {3, 8},   {1, 16384}, {2, 8192},  {7, 2880}, {8, 4096},
             {1, 4100},   {2, 4100}, {4, 101}, {33, 1000}, {64, 4096}, {65, 512}, {64, 2048},
             {100, 1024}, {128, 64}, {132, 8}, {133, 8},   {200, 64},  {65, 4096}}) {
      cases.push_back(
          {.num_rows = num_rows,
           .size = size,
           .dtype = dtype,
           .form = (num_rows + size) % 3 == 0 ? NormWeight::kOnePlus : NormWeight::kScale});
    }
  }
  return cases;
}

// Which ranks let the norm do the sum; the others do it by AllReduce().
enum class Fused { kOnAll, kOnRank0 };

// Steps of norms in both ways. Each run has other values, made on the device from a count of the
// runs, and counts on the device the elements of which the bits differ.
class NormStep {
 public:
  NormStep(Collectives& ranks, const LinearContext& context, at::Device device,
           const std::vector<NormCase>& cases, Fused fused)
      : ranks_(ranks), context_(context), fused_(fused) {
    const auto floats = at::TensorOptions().dtype(at::kFloat).device(device);
    runs_ = at::zeros({1}, floats);
    errors_ = at::zeros({1}, floats.dtype(at::kLong));
    for (const NormCase& c : cases) {
      Norm norm;
      norm.of = c;
      norm.place = at::arange(c.num_rows * c.size, floats).view({c.num_rows, c.size});
      norm.weight = (norm.place[0] * 0.37f).sin().to(c.dtype);
      for (at::Tensor* tensor : {&norm.delta, &norm.sum, &norm.out, &norm.expected, &norm.residual,
                                 &norm.expected_residual}) {
        *tensor = at::zeros({c.num_rows, c.size}, floats.dtype(c.dtype));
      }
      norms_.push_back(std::move(norm));
    }
  }

  absl::Status Run() {
    runs_ += 1;
    for (Norm& norm : norms_) {
      const int rank = ranks_.ranks().rank;
      const at::Tensor own =
          (norm.place * 0.71f + runs_ * 0.13f + static_cast<float>(rank)).sin().to(norm.of.dtype);
      const at::Tensor residual = (norm.place * 0.19f + runs_).cos().mul(3).to(norm.of.dtype);
      norm.delta.copy_(own);
      norm.sum.copy_(own);
      norm.residual.copy_(residual);
      norm.expected_residual.copy_(residual);
      REPRISE_RETURN_IF_ERROR(Plain(norm, norm.sum, norm.expected_residual, norm.expected));
      if (fused_ == Fused::kOnAll || rank == 0) {
        REPRISE_RETURN_IF_ERROR(SumAddRmsNorm(&ranks_, context_, norm.delta, norm.residual,
                                              norm.weight, kEps, norm.out, norm.of.form));
        // Which way it went: only AllReduce() stores the sum.
        Count(norm.delta, norm.of.is_fused() ? own : norm.sum);
      } else {
        REPRISE_RETURN_IF_ERROR(Plain(norm, norm.delta, norm.residual, norm.out));
      }
      Count(norm.out, norm.expected);
      Count(norm.residual, norm.expected_residual);
    }
    return absl::OkStatus();
  }

  // On all ranks: whether the results are those of rank 0.
  absl::Status ExpectEqualBitsOnAllRanks() {
    for (const Norm& norm : norms_) {
      for (const at::Tensor& own : {norm.out, norm.residual}) {
        at::Tensor of_rank_0 = own.clone();
        REPRISE_RETURN_IF_ERROR(ranks_.Broadcast(of_rank_0, 0));
        EXPECT_TRUE(Bits(of_rank_0).equal(Bits(own)));
      }
    }
    return absl::OkStatus();
  }

  // They await the device.
  int64_t runs() const { return static_cast<int64_t>(runs_.item<float>()); }
  int64_t errors() const { return errors_.item<int64_t>(); }
  int64_t num_fused() const {
    return std::count_if(norms_.begin(), norms_.end(),
                         [](const Norm& norm) { return norm.of.is_fused(); });
  }

 private:
  struct Norm {
    NormCase of;
    at::Tensor place, weight, delta, sum, out, expected, residual, expected_residual;
  };

  absl::Status Plain(const Norm& norm, at::Tensor& sum, const at::Tensor& residual,
                     const at::Tensor& out) {
    REPRISE_RETURN_IF_ERROR(ranks_.AllReduce(sum));
    return AddRmsNorm(sum, residual, norm.weight, kEps, out, norm.of.form);
  }

  static at::Tensor Bits(const at::Tensor& tensor) {
    return tensor.view(tensor.element_size() == 4 ? at::kInt : at::kShort);
  }
  void Count(const at::Tensor& got, const at::Tensor& expected) {
    errors_ += Bits(got).ne(Bits(expected)).sum();
  }

  Collectives& ranks_;
  const LinearContext& context_;
  Fused fused_;
  at::Tensor runs_, errors_;
  std::vector<Norm> norms_;
};

void ExpectTheBitsOfTwoKernels(Fused fused, int num_replays) {
  OnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
    const at::Device device = DeviceOf(place);
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, device));
    REPRISE_ASSIGN_OR_RETURN(const auto context, MakeLinearContext(device, {}));
    NormStep step(*ranks, *context, device, AllCases(), fused);
    EXPECT_GE(step.num_fused(), 20);
    REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step.Run(); }));
    EXPECT_EQ(step.errors(), 0) << "eagerly";
    const int64_t before = step.runs();
    for (int replay = 0; replay < num_replays; ++replay) REPRISE_RETURN_IF_ERROR(graph->Replay());
    EXPECT_EQ(step.runs() - before, num_replays);
    EXPECT_EQ(step.errors(), 0);
    REPRISE_RETURN_IF_ERROR(step.ExpectEqualBitsOnAllRanks());
    c10::cuda::getCurrentCUDAStream().synchronize();
    return ranks->Barrier();
  });
}

TEST(RanksGpuTest, NormsThatSumHaveTheBitsOfTwoKernels) {
  ExpectTheBitsOfTwoKernels(Fused::kOnAll, 3000);
}

TEST(RanksGpuTest, NormsThatSumMayMeetRanksThatSumFirst) {
  ExpectTheBitsOfTwoKernels(Fused::kOnRank0, 500);
}

TEST(RanksGpuTest, WithoutFusedSumsNormsComeBehindTheSum) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend&) -> absl::Status {
    const at::Device device = DeviceOf(place);
    REPRISE_ASSIGN_OR_RETURN(auto ranks,
                             ConnectRanks(place, device, {.limits = {.max_fused_bytes = 0}}));
    const at::Tensor tensor = at::zeros({1, 4096}, at::TensorOptions(device).dtype(at::kBFloat16));
    REPRISE_ASSIGN_OR_RETURN(const auto sum, ranks->PushAllReduce(tensor));
    EXPECT_FALSE(sum.has_value());
    return ranks->Barrier();
  });
}

// As a model's layers: nothing comes between the sums, and each needs the one before.
class Chain {
 public:
  static constexpr int kLayers = 65;

  Chain(Collectives& ranks, const LinearContext& context, at::Device device, int64_t num_rows)
      : ranks_(ranks), context_(context) {
    const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
    errors_ = at::zeros({1}, options.dtype(at::kLong));
    runs_ = at::zeros({1}, options.dtype(at::kFloat));
    weight_ = at::full({kSize}, 0.5f, options);
    place_ = at::arange(num_rows * kSize, options.dtype(at::kFloat)).view({num_rows, kSize});
    for (Way* way : {&fused_, &plain_}) {
      for (at::Tensor* tensor : {&way->rows[0], &way->rows[1], &way->residual}) {
        *tensor = at::zeros({num_rows, kSize}, options);
      }
    }
  }

  absl::Status Run() {
    runs_ += 1;
    for (Way* way : {&fused_, &plain_}) {
      way->rows[0].copy_((place_ * 0.3f + runs_ + static_cast<float>(ranks_.ranks().rank)).sin());
      way->residual.copy_((place_ + runs_).cos());
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      REPRISE_RETURN_IF_ERROR(SumAddRmsNorm(&ranks_, context_, fused_.rows[layer % 2],
                                            fused_.residual, weight_, kEps,
                                            fused_.rows[1 - layer % 2]));
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      REPRISE_RETURN_IF_ERROR(ranks_.AllReduce(plain_.rows[layer % 2]));
      REPRISE_RETURN_IF_ERROR(AddRmsNorm(plain_.rows[layer % 2], plain_.residual, weight_, kEps,
                                         plain_.rows[1 - layer % 2]));
    }
    for (const auto& [got, expected] :
         {std::pair(fused_.rows[kLayers % 2], plain_.rows[kLayers % 2]),
          std::pair(fused_.residual, plain_.residual)}) {
      errors_ += got.view(at::kShort).ne(expected.view(at::kShort)).sum();
    }
    return absl::OkStatus();
  }

  int64_t errors() const { return errors_.item<int64_t>(); }

 private:
  static constexpr int64_t kSize = 4096;
  struct Way {
    at::Tensor rows[2], residual;
  };

  Collectives& ranks_;
  const LinearContext& context_;
  at::Tensor errors_, runs_, weight_, place_;
  Way fused_, plain_;
};

TEST(RanksGpuTest, AChainOfNormsThatSumIsThatOfTwoKernelsEach) {
  for (const int64_t num_rows : {1, 8, 64}) {
    SCOPED_TRACE(num_rows);
    OnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
      const at::Device device = DeviceOf(place);
      REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, device));
      REPRISE_ASSIGN_OR_RETURN(const auto context, MakeLinearContext(device, {}));
      Chain chain(*ranks, *context, device, num_rows);
      REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return chain.Run(); }));
      for (int replay = 0; replay < 3000; ++replay) REPRISE_RETURN_IF_ERROR(graph->Replay());
      EXPECT_EQ(chain.errors(), 0);
      return ranks->Barrier();
    });
    if (testing::Test::IsSkipped()) return;
  }
}

TEST(RanksGpuTest, ARankThatIsKilledInANormThatSumsIsNamedAndTheDeviceGoesOn) {
  for (const bool captured : {true, false}) {
    SCOPED_TRACE(captured ? "captured" : "eager");
    const auto reports = RunOnTwoGpus([&](const RankPlace& place,
                                          CudaGraphBackend& backend) -> absl::Status {
      const at::Device device = DeviceOf(place);
      REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, device, kQuick));
      REPRISE_ASSIGN_OR_RETURN(const auto context, MakeLinearContext(device, {}));
      Chain chain(*ranks, *context, device, /*num_rows=*/8);
      REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return chain.Run(); }));
      const auto run = [&] { return captured ? graph->Replay() : chain.Run(); };
      if (place.ranks.rank == 0) return RunUntilFailure(*ranks, run);
      for (int i = 0; i < 23; ++i) REPRISE_RETURN_IF_ERROR(run());
      raise(SIGKILL);
      return absl::OkStatus();
    });
    if (reports == nullptr) return;
    ExpectRank0(*reports, absl::StatusCode::kUnavailable, "has ended", absl::Seconds(40));
  }
}

}  // namespace
}  // namespace reprise
