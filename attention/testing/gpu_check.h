// Runs a case of the cross-product (attention/testing/cross_product.h) on the GPU and compares it
// with the reference.
//
//   const ExpectedAttention<PagedFixture> expected = ExpectedOf(MakePagedFixture(c.fixture), c);
//   absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
//   EXPECT_EQ(outcome->fault, "");
//
// Thread safety: ExpectedOf() may run on many threads; RunOnGpu() on one. Cost: mostly the
// references.

#ifndef ATTENTION_TESTING_GPU_CHECK_H_
#define ATTENTION_TESTING_GPU_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "attention/reference/reference.h"
#include "attention/testing/attention_error.h"
#include "attention/testing/batch_generator.h"
#include "attention/testing/cross_product.h"
#include "attention/testing/ragged_generator.h"

namespace reprise {

// A fixture with its exact result, and the same arithmetic in the kernel's precision.
template <typename Fixture>
struct ExpectedAttention {
  Fixture fixture;
  ReferenceResult<double> exact;
  ReferenceResult<float> own;
};

ExpectedAttention<PagedFixture> ExpectedOf(PagedFixture fixture, const CrossProductCase& c);
ExpectedAttention<RaggedFixture> ExpectedOf(RaggedFixture fixture, const CrossProductCase& c);

struct GpuOutcome {
  std::string kernel;    // its name
  AttentionError error;  // of out and lse of the batch's tokens
  // Empty, or the fault: an error beyond its limit, NaN, a value where no key is seen, a write
  // outside of out and lse, or bits that differ from those of a second run.
  std::string fault;
};

// Runs the case twice over poisoned memory. Errors: those of PagedAttention().
template <typename Fixture>
absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedAttention<Fixture>& expected,
                                    const CrossProductCase& c);

}  // namespace reprise

#endif  // ATTENTION_TESTING_GPU_CHECK_H_
