// Runs a case of the cross-product (attention/testing/cross_product.h) on the GPU and compares the
// result with the reference.
//
//   const ExpectedPair<PagedFixture> expected = ExpectedOf(MakePagedFixturePair(c.fixture), c);
//   absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
//   EXPECT_EQ(outcome->fault, "");
//
// Thread safety: ExpectedOf() may run on many threads, RunOnGpu() on one thread. Cost: mostly the
// references.

#ifndef REPRISE_ATTENTION_TESTING_GPU_CHECK_H_
#define REPRISE_ATTENTION_TESTING_GPU_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/ragged_generator.h"

namespace reprise {

// A fixture with its exact result, and with the result of the same arithmetic in the kernel's
// precision.
template <typename Fixture>
struct ExpectedAttention {
  Fixture fixture;
  ReferenceResult<double> exact;
  ReferenceResult<float> own;
};

template <typename Fixture>
struct ExpectedPair {
  ExpectedAttention<Fixture> first;
  ExpectedAttention<Fixture> second;

  // Describes both fixtures.
  const std::string& description() const { return second.fixture.description; }
};

ExpectedPair<PagedFixture> ExpectedOf(FixturePair<PagedFixture> pair, const CrossProductCase& c);
ExpectedPair<RaggedFixture> ExpectedOf(FixturePair<RaggedFixture> pair, const CrossProductCase& c);

struct GpuOutcome {
  std::string kernel;  // name of the kernel
  // Errors of out and lse for the batch's tokens: `eager` for the first contents, run eagerly, and
  // `replayed` for the second contents, replayed.
  AttentionError eager;
  AttentionError replayed;
  // Maximum number of KV splits of a Q tile in each run; 0: no Q tile is split.
  int eager_splits = 0;
  int replayed_splits = 0;
  // Empty, or a description of the fault: an error beyond its limit, NaN, a result for a query
  // without keys, a write outside of out and lse, or a replay that differs bitwise from the eager
  // run.
  std::string fault;
};

// Runs the first contents eagerly, and captures the tile schedule and the attention in one graph.
// Then overwrites every array, q, the keys and a scale of out in memory with the second contents,
// and replays. Finally writes the first contents again and replays; the result must be bitwise
// identical to the eager run. All runs use poisoned schedules and results. Stops at the first
// fault. Errors: errors of the schedule's builder, of PagedAttentionCuda() or
// RaggedAttentionCuda(), and of the capture.
template <typename Fixture>
absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedPair<Fixture>& expected,
                                    const CrossProductCase& c);

// All features except those that kernels with direct loads do not support.
inline FeatureSet DirectFeatures() {
  return FeatureSet::All().Without({Feature::kRotary, Feature::kNewKeys, Feature::kOddHeadDim,
                                    Feature::kDifferentV, Feature::kUnalignedQ});
}

// Runs a case with RunOnGpu(), expects no fault, and calls then(expected, outcome). It is a fatal
// failure if the case does not run.
template <typename Then>
void ExpectNoFault(const CrossProductCase& c, const Then& then) {
  const ExpectedPair<PagedFixture> expected = ExpectedOf(MakePagedFixturePair(c.fixture), c);
  SCOPED_TRACE(expected.description());
  const absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->fault, "") << outcome->kernel;
  then(expected, *outcome);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_GPU_CHECK_H_
