// Compares all pairs of attention options on the GPU with the float64 reference. Each case runs
// eagerly with one set of contents, and is replayed from a captured graph with a second set in the
// same memory (attention/testing/gpu_check.h).
//
//   REPRISE_CROSS_PRODUCT_CASES=20000   minimum number of cases; default 5000
//   REPRISE_CROSS_PRODUCT_SEED=7        seed of the first covering array; default 0

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/ragged_generator.h"

namespace reprise {
namespace {

constexpr CrossProductSpace kSpaces[] = {CrossProductSpace::kAll, CrossProductSpace::kDirect,
                                         CrossProductSpace::kFp8, CrossProductSpace::kCudaCores};

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) {
    ADD_FAILURE() << name << " must be a number: got " << text;
  }
  return value;
}

// Computes the references of all cases in parallel.
template <typename Fixture, typename Make>
std::vector<ExpectedPair<Fixture>> ExpectedOfAll(const std::vector<CrossProductCase>& cases,
                                                 const Make& make) {
  std::vector<ExpectedPair<Fixture>> expected(cases.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < cases.size(); i = next++) {
        expected[i] = ExpectedOf(make(cases[i].fixture), cases[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return expected;
}

class CrossProductGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Runs all cases of one kind of fixture, and compares them with their references.
  template <typename Fixture, typename Make>
  void CheckAll(const std::vector<CrossProductCase>& cases, const Make& make) {
    const auto expected = ExpectedOfAll<Fixture>(cases, make);
    for (size_t i = 0; i < cases.size(); ++i) {
      const CrossProductCase& c = cases[i];
      SCOPED_TRACE(expected[i].description());
      const absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected[i], c);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(outcome->fault, "") << outcome->kernel << ", out of " << c.out.dtype;
      ++num_cases_;
      for (const absl::string_view kernel : absl::StrSplit(outcome->kernel, " + ")) {
        ++of_kernel_[std::string(kernel)];
      }
      if (!outcome->fault.empty()) continue;
      of_dtype_[c.out.dtype].Add(outcome->eager);
      of_dtype_[c.out.dtype].Add(outcome->replayed);
    }
  }

  void CheckArray(uint64_t seed, CrossProductSpace space) {
    SCOPED_TRACE("covering array of seed " + std::to_string(seed) + " in space " +
                 std::to_string(static_cast<int>(space)));
    std::vector<CrossProductCase> paged, ragged;
    for (const CrossProductCase& c : CrossProductCases(seed, space)) {
      (c.keys == KeySource::kPaged ? paged : ragged).push_back(c);
    }
    CheckAll<PagedFixture>(paged, MakePagedFixturePair);
    CheckAll<RaggedFixture>(ragged, MakeRaggedFixturePair);
  }

  static bool IsForThisCard(const AttentionKernelEntry& kernel) {
    return kernel.tier() == 1 || kernel.compute_capability() == ComputeCapability();
  }

  // The smallest number of cases that a kernel for this card has served.
  int64_t MinServed() {
    int64_t least = num_cases_;
    for (const AttentionKernelEntry& kernel : kAttentionKernels) {
      if (IsForThisCard(kernel)) least = std::min(least, of_kernel_[kernel.name()]);
    }
    return least;
  }

  int64_t num_cases_ = 0;
  std::map<std::string, int64_t> of_kernel_;
  std::map<DType, ErrorTotals> of_dtype_;
};

// Covers every pair of choices of every two fields, by default in at least 5,000 cases with two
// sets of contents each.
TEST_F(CrossProductGpuTest, EveryPairOfOptionsMatchesTheReferenceEagerlyAndReplayed) {
  const int64_t least = FromEnvironment("REPRISE_CROSS_PRODUCT_CASES", 5000);
  const uint64_t first = FromEnvironment("REPRISE_CROSS_PRODUCT_SEED", 0);
  uint64_t seed = first;
  // Adds covering arrays until every kernel has served enough cases, or there are 3 * least cases.
  // Only a few cases qualify for tier 2.
  for (; num_cases_ < least || (MinServed() < least / 1000 && num_cases_ < 3 * least); ++seed) {
    for (CrossProductSpace space : kSpaces) CheckArray(seed, space);
    if (HasFailure()) return;
  }
  std::cout << num_cases_ << " cases of the cross-product, seeds " << first << " to " << seed - 1
            << "\n";
  for (const auto& [dtype, totals] : of_dtype_) {
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
    std::cout << "  error of out in " << dtype
              << " relative to the same computation: " << totals.OutRatio() << "\n";
  }
  // Every kernel for this card must serve some cases, so that no kernel passes untested.
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    if (!IsForThisCard(kernel)) continue;
    const int64_t served = of_kernel_[kernel.name()];
    EXPECT_GE(served, least / 1000) << kernel.name() << " served too few cases";
    std::cout << "  " << served << " by " << kernel.name() << "\n";
  }
}

// Small cases, for compute-sanitizer.
class CrossProductSmallGpuTest : public CrossProductGpuTest {};

TEST_F(CrossProductSmallGpuTest, SomeCasesOfEverySpaceAgreeWithTheReference) {
  constexpr int kCasesOfSpace = 12;
  for (CrossProductSpace space : kSpaces) {
    std::vector<CrossProductCase> paged;
    for (CrossProductCase c : CrossProductCases(0, space)) {
      if (c.keys != KeySource::kPaged || *c.fixture.head_dim_qk > 128) continue;
      c.fixture.max_rows = 2;
      c.fixture.max_query_len = std::min(c.fixture.max_query_len, 40);
      c.fixture.max_seq_len = std::min(c.fixture.max_seq_len, 300);
      if (static_cast<int>(paged.size()) < kCasesOfSpace) paged.push_back(c);
    }
    ASSERT_EQ(static_cast<int>(paged.size()), kCasesOfSpace);
    CheckAll<PagedFixture>(paged, MakePagedFixturePair);
  }
}

}  // namespace
}  // namespace reprise
