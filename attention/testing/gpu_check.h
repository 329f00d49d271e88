// Runs a case of the cross-product (attention/testing/cross_product.h) on the GPU and compares it
// with the reference.
//
//   const ExpectedPair<PagedFixture> expected = ExpectedOf(MakePagedFixturePair(c.fixture), c);
//   absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
//   EXPECT_EQ(outcome->fault, "");
//
// Thread safety: ExpectedOf() may run on many threads; RunOnGpu() on one. Cost: mostly the
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

// A fixture with its exact result, and the same arithmetic in the kernel's precision.
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

  // Of both.
  const std::string& description() const { return second.fixture.description; }
};

ExpectedPair<PagedFixture> ExpectedOf(FixturePair<PagedFixture> pair, const CrossProductCase& c);
ExpectedPair<RaggedFixture> ExpectedOf(FixturePair<RaggedFixture> pair, const CrossProductCase& c);

struct GpuOutcome {
  std::string kernel;  // its name
  // Of out and lse of the batch's tokens: of the first contents, run eagerly, and of the second ones,
  // replayed.
  AttentionError eager;
  AttentionError replayed;
  // The most pieces into which either run cut a range of queries (MostPieces() of gpu_memory.h).
  int eager_pieces = 0;
  int replayed_pieces = 0;
  // Empty, or the fault: an error beyond its limit, NaN, a value where no key is seen, a write
  // outside of out and lse, or bits of a replay that differ from those of the eager run.
  std::string fault;
};

// Runs the first contents eagerly and captures the work map and attention in one graph. Then it
// overwrites every array, q, the keys and a scale of out in memory by the second contents and replays; then by the
// first ones again, whose bits must be those of the eager run. All over poisoned maps and results.
// Errors: those of PagedAttention().
template <typename Fixture>
absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedPair<Fixture>& expected,
                                    const CrossProductCase& c);

// All features but those that the kernels with direct loads leave to the converting ones.
inline FeatureSet DirectFeatures() {
  return FeatureSet::All().Without({Feature::kRotary, Feature::kNewKeys, Feature::kOddHeadDim,
                                    Feature::kDifferentV, Feature::kUnalignedQ});
}

// Runs a case by RunOnGpu(), expects no fault, and calls then(expected, outcome). A case that does
// not run is a fatal failure.
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
