// Compares attention over the batch of each builder with a dense float64 computation that follows
// the definition of attention. On the GPU.

#include "gtest/gtest.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/builder_cases.h"
#include "reprise/attention/testing/gpu_attention.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 22;

class BuilderAttentionGpuTest : public ::testing::TestWithParam<BuilderKind> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// The type to which the kernel rounds the softmax weights before the second MMA; kFloat64 if it
// does not round them.
DType WeightType(DType dtype) { return dtype == DType::kFloat32 ? DType::kFloat64 : dtype; }

ReferenceResult<float> SameMaths(const PagedFixture& fixture) {
  return ReferencePagedAttention<float>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                        fixture.Q(OnHost), fixture.Kv(OnHost),
                                        WeightType(fixture.q.dtype));
}
ReferenceResult<float> SameMaths(const RaggedFixture& fixture) {
  return ReferenceRaggedAttention<float>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                         fixture.q.View(OnHost), fixture.k.View(OnHost),
                                         fixture.v.View(OnHost), WeightType(fixture.q.dtype));
}

template <typename Fixture>
void Check(const Fixture& fixture, const ReferenceResult<double>& dense) {
  GpuAttention gpu(fixture, {});
  const absl::Status status = gpu.Run();
  ASSERT_TRUE(status.ok()) << status;
  const AttentionError error =
      ErrorOf(gpu.Values(), dense, SameMaths(fixture), fixture.layer.params.head_dim_v,
              {.dtype = fixture.q.dtype}, {.dtype = fixture.q.dtype});
  ASSERT_EQ(error.wrong, "");
  ASSERT_LE(error.out, error.out_limit);
  ASSERT_LE(error.lse, error.lse_limit);
}

TEST_P(BuilderAttentionGpuTest, MatchesADenseComputationInFloat64) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Random random(kSeed);
    for (int round = 0; round < 60; ++round) {
      const BuilderCase drawn = DrawBuilderCase(GetParam(), dtype, random);
      SCOPED_TRACE(testing::Message()
                   << "seed " << kSeed << ", round " << round << ": " << drawn.description);
      if (drawn.paged) Check(*drawn.paged, drawn.dense);
      if (drawn.ragged) Check(*drawn.ragged, drawn.dense);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllBuilders, BuilderAttentionGpuTest, testing::ValuesIn(kAllBuilderKinds));

}  // namespace
}  // namespace reprise
