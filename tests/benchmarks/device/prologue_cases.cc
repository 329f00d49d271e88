#include "tests/benchmarks/device/prologue_cases.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/runner/ops/head_norm.h"
#include "reprise/runner/ops/rotary.h"
#include "reprise/runner/ops/rotary_table.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {
namespace {

constexpr int kQHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kBlockSize = 16;
constexpr int kMaxPositions = 8192;
constexpr double kColdBytes = 400e6;

const at::Device kGpu = at::Device(at::kCUDA, 0);

enum class Kind { kRotary, kNormAndFp8 };

absl::StatusOr<CachePoint> MeasurePrologue(int num_tokens, Kind kind) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  const bool has_norm = kind == Kind::kNormAndFp8;
  const DType dtype = has_norm ? DType::kFp8E4M3 : DType::kBFloat16;
  const double bytes =
      1.0 * num_tokens * kHeadDim * (kQHeads * 4 + 2 * kKvHeads * (2 + SizeOf(dtype)));
  const int num_calls =
      static_cast<int>(std::clamp(kColdBytes / bytes, 2.0, num_tokens <= 256 ? 64.0 : 400.0));
  const int blocks_per_call = (num_tokens + kBlockSize - 1) / kBlockSize;
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create({.num_blocks = 1 + num_calls * blocks_per_call,
                                             .block_size = kBlockSize,
                                             .num_kv_heads = kKvHeads,
                                             .head_dim_qk = kHeadDim,
                                             .head_dim_v = kHeadDim,
                                             .dtype = dtype}));
  REPRISE_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(layout, kGpu));
  REPRISE_RETURN_IF_ERROR(cache.Fill(0));
  if (has_norm) cache.SetScales(0, {.value = 0.3f}, {.value = 0.3f});

  std::vector<float> frequencies(kHeadDim / 2);
  for (int i = 0; i < kHeadDim / 2; ++i) frequencies[i] = std::pow(1e4f, -2.0f * i / kHeadDim);
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor table,
                           MakeRotaryTable(frequencies, kMaxPositions, 1.0f, kGpu));
  const auto bf16 = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  std::optional<HeadNormOptions> norm;
  if (has_norm) {
    norm = HeadNormOptions{.q_weight = at::ones({kHeadDim}, bf16),
                           .k_weight = at::ones({kHeadDim}, bf16)};
  }
  const int64_t num_rows = int64_t{num_calls} * num_tokens;
  const at::Tensor qkv = at::randn({num_rows, (kQHeads + 2 * kKvHeads) * kHeadDim}, bf16);
  const at::Tensor positions =
      at::arange(num_rows, at::TensorOptions(kGpu).dtype(at::kInt)).remainder_(kMaxPositions);
  const at::Tensor blocks = at::randperm(num_calls * blocks_per_call, at::kLong).add(1);
  const at::Tensor slots =
      blocks.view({-1, 1}).mul(kBlockSize).add(at::arange(kBlockSize, at::kLong)).to(kGpu);

  const auto work = [&](bool is_fused) -> absl::Status {
    for (int call = 0; call < num_calls; ++call) {
      const at::Tensor rows = qkv.narrow(0, int64_t{call} * num_tokens, num_tokens);
      const auto heads = [&](int first, int count) {
        return rows.narrow(1, int64_t{first} * kHeadDim, int64_t{count} * kHeadDim)
            .unflatten(1, {count, kHeadDim});
      };
      const at::Tensor q = heads(0, kQHeads), k = heads(kQHeads, kKvHeads),
                       v = heads(kQHeads + kKvHeads, kKvHeads);
      const at::Tensor of_call = positions.narrow(0, int64_t{call} * num_tokens, num_tokens);
      const at::Tensor slots_of_call =
          slots.narrow(0, int64_t{call} * blocks_per_call, blocks_per_call)
              .view(-1)
              .narrow(0, 0, num_tokens);
      if (is_fused) {
        REPRISE_RETURN_IF_ERROR(
            RotaryWriteKv(q, k, v, of_call, table, cache.layer(0), slots_of_call, norm));
        continue;
      }
      if (norm.has_value()) REPRISE_RETURN_IF_ERROR(NormaliseHeads(q, k, *norm));
      REPRISE_RETURN_IF_ERROR(Rotary(q, k, of_call, table));
      REPRISE_RETURN_IF_ERROR(WriteKv(cache.layer(0), k, v, slots_of_call));
    }
    return absl::OkStatus();
  };
  REPRISE_ASSIGN_OR_RETURN(const Timing apart, TimeReplays([&] { return work(false); }, {}));
  REPRISE_ASSIGN_OR_RETURN(const Timing fused, TimeReplays([&] { return work(true); }, {}));
  return CachePoint{
      .operation = "prologue",
      .shape = absl::StrCat(num_tokens, has_norm ? " tokens: norm, rotary, fp8 write, one launch"
                                                 : " tokens: rotary, write, one launch"),
      .bytes = bytes,
      .timing = {.median_us = fused.median_us / num_calls,
                 .min_us = fused.min_us / num_calls,
                 .max_us = fused.max_us / num_calls},
      .plain_us = apart.median_us / num_calls,
      .plain = "one launch a step"};
}

}  // namespace

absl::StatusOr<std::vector<CachePoint>> MeasurePrologues() {
  return CatchTorchOr([]() -> absl::StatusOr<std::vector<CachePoint>> {
    std::vector<CachePoint> points;
    for (const Kind kind : {Kind::kRotary, Kind::kNormAndFp8}) {
      for (const int num_tokens : {1, 32, 256, 2048}) {
        REPRISE_ASSIGN_OR_RETURN(CachePoint point, MeasurePrologue(num_tokens, kind));
        points.push_back(std::move(point));
      }
    }
    return points;
  });
}

}  // namespace reprise
