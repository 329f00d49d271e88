// Compares attention over the batch of each builder with a dense float64 computation that follows
// the definition of attention. On the CPU.

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/builder_cases.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 21;

at::Tensor AsTensor(const TokenView& view, int num_tokens, int num_heads, int head_dim) {
  return at::from_blob(view.data, {num_tokens, num_heads, head_dim},
                       {view.token_stride, view.head_stride, 1},
                       at::TensorOptions().dtype(ToScalarType(view.dtype)));
}

struct Attended {
  absl::Status status;
  AttentionValues values;
  ReferenceResult<float> own;  // the same computation in float32
};

std::vector<double> ToDoubles(const at::Tensor& tensor) {
  const at::Tensor doubles = tensor.to(at::kDouble).contiguous();
  return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

Attended Attend(const BuilderCase& drawn) {
  Attended attended;
  const bool is_paged = drawn.paged.has_value();
  const AttentionParams layer = is_paged ? drawn.paged->Layer(OnHost) : drawn.ragged->Layer(OnHost);
  const int num_tokens =
      is_paged ? drawn.paged->capacities.num_tokens : drawn.ragged->capacities.num_tokens;
  const TokenView q_view = is_paged ? drawn.paged->Q(OnHost) : drawn.ragged->q.View(OnHost);
  const at::Tensor q = AsTensor(q_view, num_tokens, layer.num_q_heads, layer.head_dim_qk);
  at::Tensor out = at::full({num_tokens, layer.num_q_heads, layer.head_dim_v}, NAN, at::kFloat);
  at::Tensor lse = at::full({num_tokens, layer.num_q_heads}, NAN, at::kFloat);
  if (is_paged) {
    const PagedBatch batch = drawn.paged->Batch(OnHost);
    const KvLayer kv = drawn.paged->Kv(OnHost);
    attended.status = PagedAttention(layer, batch, BatchSchedule{}, q, kv, {out, &lse});
    attended.own = ReferencePagedAttention<float>(layer, batch, q_view, kv);
  } else {
    const RaggedBatch batch = drawn.ragged->Batch(OnHost);
    const TokenView k = drawn.ragged->k.View(OnHost);
    const TokenView v = drawn.ragged->v.View(OnHost);
    attended.status =
        RaggedAttention(layer, batch, BatchSchedule{}, q,
                        {AsTensor(k, batch.num_keys, layer.num_kv_heads, layer.head_dim_qk),
                         AsTensor(v, batch.num_keys, layer.num_kv_heads, layer.head_dim_v)},
                        {out, &lse});
    attended.own = ReferenceRaggedAttention<float>(layer, batch, q_view, k, v);
  }
  attended.values = {.out = ToDoubles(out), .lse = ToDoubles(lse)};
  return attended;
}

class BuilderAttentionTest : public ::testing::TestWithParam<BuilderKind> {};

TEST_P(BuilderAttentionTest, MatchesADenseComputationInFloat64) {
  Random random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const BuilderCase drawn = DrawBuilderCase(GetParam(), DType::kFloat32, random);
    SCOPED_TRACE(testing::Message()
                 << "seed " << kSeed << ", round " << round << ": " << drawn.description);
    const Attended attended = Attend(drawn);
    ASSERT_TRUE(attended.status.ok()) << attended.status;
    const int head_dim_v =
        (drawn.paged ? drawn.paged->layer : drawn.ragged->layer).params.head_dim_v;
    const AttentionError error = ErrorOf(attended.values, drawn.dense, attended.own, head_dim_v,
                                         {.dtype = DType::kFloat64}, {.dtype = DType::kFloat32});
    ASSERT_EQ(error.wrong, "");
    ASSERT_LE(error.out, error.out_limit);
    ASSERT_LE(error.lse, error.lse_limit);
  }
}

INSTANTIATE_TEST_SUITE_P(AllBuilders, BuilderAttentionTest, testing::ValuesIn(kAllBuilderKinds));

}  // namespace
}  // namespace reprise
