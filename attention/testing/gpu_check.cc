#include "reprise/attention/testing/gpu_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/attention/testing/gpu_attention.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// float32 MMAs do not round their operands.
DType RoundingOf(DType products) {
  return products == DType::kFloat32 ? DType::kFloat64 : products;
}

std::string FaultOf(const AttentionError& error) {
  if (!error.wrong.empty()) return error.wrong;
  if (error.out > error.out_limit) {
    return absl::StrCat("out is off by ", error.out, ", allowed is ", error.out_limit);
  }
  if (error.lse > error.lse_limit) {
    return absl::StrCat("lse is off by ", error.lse, ", allowed is ", error.lse_limit);
  }
  return "";
}

ExpectedAttention<PagedFixture> ExpectedOfOne(PagedFixture fixture, const CrossProductCase& c) {
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.Q(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const NewKeys keys = fixture.New(OnHost);
  auto exact = ReferencePagedAttention<double>(layer, batch, q, kv, DType::kFloat64, keys);
  auto own = ReferencePagedAttention<float>(layer, batch, q, kv, RoundingOf(c.products), keys);
  return {std::move(fixture), std::move(exact), std::move(own)};
}

ExpectedAttention<RaggedFixture> ExpectedOfOne(RaggedFixture fixture, const CrossProductCase& c) {
  const AttentionParams layer = fixture.Layer(OnHost);
  const RaggedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.q.View(OnHost);
  const TokenView k = fixture.k.View(OnHost);
  const TokenView v = fixture.v.View(OnHost);
  const KeyScales scales = {.k = fixture.layer.k_scale.View(OnHost),
                            .v = fixture.layer.v_scale.View(OnHost)};
  auto exact = ReferenceRaggedAttention<double>(layer, batch, q, k, v, DType::kFloat64, scales);
  auto own = ReferenceRaggedAttention<float>(layer, batch, q, k, v, RoundingOf(c.products), scales);
  return {std::move(fixture), std::move(exact), std::move(own)};
}

template <typename Fixture>
ExpectedPair<Fixture> ExpectedOfBoth(FixturePair<Fixture> pair, const CrossProductCase& c) {
  return {.first = ExpectedOfOne(std::move(pair.first), c),
          .second = ExpectedOfOne(std::move(pair.second), c)};
}

// Compares the results on the GPU. Returns a description of the fault, or an empty string.
template <typename Fixture>
std::string FaultOf(const GpuAttention& gpu, const ExpectedAttention<Fixture>& expected,
                    const CrossProductCase& c, const OutputRounding& out, AttentionError& error) {
  const bool rounds_operands = gpu.layer().rotary || gpu.kv().rope_dim > 0;
  const DType operands = rounds_operands ? c.products : DType::kFloat32;
  error = ErrorOf(gpu.Values(), expected.exact, expected.own, gpu.layer().head_dim_v,
                  {.dtype = c.products, .operands = operands, .head_dim = gpu.layer().head_dim_qk},
                  out);
  const std::string fault = FaultOf(error);
  return fault.empty() ? gpu.FaultOutside() : fault;
}

}  // namespace

ExpectedPair<PagedFixture> ExpectedOf(FixturePair<PagedFixture> pair, const CrossProductCase& c) {
  return ExpectedOfBoth(std::move(pair), c);
}

ExpectedPair<RaggedFixture> ExpectedOf(FixturePair<RaggedFixture> pair, const CrossProductCase& c) {
  return ExpectedOfBoth(std::move(pair), c);
}

template <typename Fixture>
absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedPair<Fixture>& expected,
                                    const CrossProductCase& c) {
  const Fixture& first = expected.first.fixture;
  GpuAttention gpu(first, {.out_dtype = c.out.dtype,
                           .out_scale = static_cast<float>(c.out.scale),
                           .out_scale_in_memory = c.second_out_scale.has_value(),
                           .out_block = c.out.block,
                           .kernels = {.products = c.asked_products, .max_tier = c.max_tier},
                           .num_extra_tokens = c.num_extra_tokens,
                           .out_head_gap = c.out_gap,
                           .out_token_gap = 2 * c.out_gap,
                           .num_sms = c.num_sms,
                           .max_shared_bytes = c.max_shared_bytes,
                           .mode = c.mode,
                           .max_splits = c.max_splits,
                           .shared_prefix = c.shared_prefix,
                           .shared_tiles = c.shared_tiles});
  GpuOutcome outcome;
  const auto fails = [&](const char* when, const std::string& fault) {
    if (!fault.empty()) outcome.fault = absl::StrCat(when, ": ", fault);
    return !fault.empty();
  };
  REPRISE_ASSIGN_OR_RETURN(outcome.kernel, gpu.KernelName());
  REPRISE_RETURN_IF_ERROR(gpu.Run());
  if (fails("run eagerly", FaultOf(gpu, expected.first, c, c.out, outcome.eager))) return outcome;
  outcome.eager_splits = MaxSplits(gpu.work().schedule());
  const GpuAttention::Bits bits = gpu.CopyBits();
  REPRISE_RETURN_IF_ERROR(gpu.Capture());
  gpu.Write(expected.second.fixture);
  if (c.second_out_scale) gpu.WriteOutScale(*c.second_out_scale);
  REPRISE_RETURN_IF_ERROR(gpu.Replay());
  if (fails("replayed with other contents",
            FaultOf(gpu, expected.second, c, c.second_out(), outcome.replayed))) {
    return outcome;
  }
  outcome.replayed_splits = MaxSplits(gpu.work().schedule());
  gpu.Write(first);
  if (c.second_out_scale) gpu.WriteOutScale(static_cast<float>(c.out.scale));
  REPRISE_RETURN_IF_ERROR(gpu.Replay());
  fails("replayed with the first contents, these bits changed", gpu.DifferenceFrom(bits));
  return outcome;
}

template absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedPair<PagedFixture>& expected,
                                             const CrossProductCase& c);
template absl::StatusOr<GpuOutcome> RunOnGpu(const ExpectedPair<RaggedFixture>& expected,
                                             const CrossProductCase& c);

}  // namespace reprise
