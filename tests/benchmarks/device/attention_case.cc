#include "tests/benchmarks/device/attention_case.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/storage/kv_cache.h"

namespace reprise {
namespace {

// Total size of all layers: several times the L2 of any card.
constexpr double kColdBytes = 400e6;
constexpr int kMaxLayers = 64;

absl::Status Check(const AttentionCase& c) {
  if (c.lens.empty() || c.lens.size() != c.query_lens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lens and query lens must have as many entries, at least one: got ",
                     c.lens.size(), " and ", c.query_lens.size()));
  }
  for (size_t r = 0; r < c.lens.size(); ++r) {
    if (c.query_lens[r] > c.lens[r]) {
      return absl::InvalidArgumentError(absl::StrCat("row ", r, " has ", c.query_lens[r],
                                                     " queries, but only ", c.lens[r], " keys"));
    }
  }
  const int least = *std::min_element(c.lens.begin(), c.lens.end());
  if (c.shared_len < 0 || c.shared_len > least || c.shared_len % c.block_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("shared_len: expected a multiple of ",
                                                   c.block_size, " up to ", least, ", got ",
                                                   c.shared_len));
  }
  return absl::OkStatus();
}

// Keys that query i of a row of `len` keys and `query_len` queries sees: [begin, end).
std::pair<int64_t, int64_t> VisibleKeys(const AttentionCase& c, int len, int query_len, int i) {
  const int64_t position = len - query_len + i;
  const int64_t begin = c.window_left ? std::max<int64_t>(0, position - *c.window_left) : 0;
  return {begin, c.causal ? position + 1 : len};
}

// Bytes of a key and its value. In a latent cache the value is part of the key.
double KeyBytes(const AttentionCase& c) {
  const int dims = c.head_dim_qk + (c.form == KvForm::kLatent ? 0 : c.head_dim_v);
  return static_cast<double>(c.num_kv_heads) * dims * SizeOf(c.kv_dtype.value_or(c.dtype));
}

void CountWork(const AttentionCase& c, AttentionResult& result) {
  const int dims = c.head_dim_qk + c.head_dim_v;
  double pairs = 0;
  double keys = 0;
  double queries = 0;
  for (size_t r = 0; r < c.lens.size(); ++r) {
    if (c.query_lens[r] == 0) continue;
    for (int i = 0; i < c.query_lens[r]; ++i) {
      const auto [begin, end] = VisibleKeys(c, c.lens[r], c.query_lens[r], i);
      pairs += static_cast<double>(end - begin);
    }
    keys +=
        static_cast<double>(VisibleKeys(c, c.lens[r], c.query_lens[r], c.query_lens[r] - 1).second -
                            VisibleKeys(c, c.lens[r], c.query_lens[r], 0).first);
    queries += c.query_lens[r];
  }
  result.flops = 2.0 * pairs * c.num_q_heads * dims;
  result.kv_bytes = keys * KeyBytes(c);
  result.all_bytes = result.kv_bytes + queries * c.num_q_heads * dims * SizeOf(c.dtype);
}

at::Tensor OnDevice(const std::vector<int32_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(at::kCUDA);
}

// The batch's arrays; the tensors keep them alive.
struct DeviceBatch {
  at::Tensor query_start_loc, seq_lens, table, common_prefix_len;
  PagedBatch batch;
  int num_blocks = 0;
};

DeviceBatch MakeBatch(const AttentionCase& c) {
  std::vector<int32_t> starts = {0};
  int max_blocks = 0;
  int64_t num_blocks = 1;
  for (size_t r = 0; r < c.lens.size(); ++r) {
    starts.push_back(starts.back() + c.query_lens[r]);
    const int row_blocks = (c.lens[r] + c.block_size - 1) / c.block_size;
    max_blocks = std::max(max_blocks, row_blocks);
    num_blocks += row_blocks;
  }
  std::vector<int32_t> blocks(num_blocks - 1);
  std::iota(blocks.begin(), blocks.end(), 1);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  const int num_rows = static_cast<int>(c.lens.size());
  std::vector<int32_t> table(static_cast<size_t>(num_rows) * std::max(max_blocks, 1));
  for (int r = 0; r < num_rows; ++r) {
    for (int i = 0; i * c.block_size < c.lens[r]; ++i) {
      int32_t& entry = table[static_cast<size_t>(r) * max_blocks + i];
      if (r > 0 && i * c.block_size < c.shared_len) {
        entry = table[i];
        continue;
      }
      entry = blocks.back();
      blocks.pop_back();
    }
  }
  DeviceBatch made = {.query_start_loc = OnDevice(starts),
                      .seq_lens = OnDevice({c.lens.begin(), c.lens.end()}),
                      .table = OnDevice(table),
                      .common_prefix_len = OnDevice({c.shared_len}),
                      .batch = {},
                      .num_blocks = static_cast<int>(num_blocks)};
  made.batch = {.query_start_loc = made.query_start_loc.const_data_ptr<int32_t>(),
                .seq_lens = made.seq_lens.const_data_ptr<int32_t>(),
                .block_table = made.table.const_data_ptr<int32_t>(),
                .block_table_stride = max_blocks,
                .common_prefix_len = made.common_prefix_len.const_data_ptr<int32_t>(),
                .causal = c.causal,
                .num_rows = num_rows,
                .num_tokens = starts.back(),
                .max_query_len = *std::max_element(c.query_lens.begin(), c.query_lens.end()),
                .max_seq_len = *std::max_element(c.lens.begin(), c.lens.end()),
                .num_tables = num_rows,
                .max_blocks = max_blocks};
  return made;
}

absl::StatusOr<KvCache> MakeCache(const AttentionCase& c, int num_layers, int num_blocks) {
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create({.num_layers = num_layers,
                                             .num_blocks = num_blocks,
                                             .block_size = c.block_size,
                                             .num_kv_heads = c.num_kv_heads,
                                             .head_dim_qk = c.head_dim_qk,
                                             .head_dim_v = c.head_dim_v,
                                             .dtype = c.kv_dtype.value_or(c.dtype),
                                             .order = c.order,
                                             .form = c.form}));
  REPRISE_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(layout, at::Device(at::kCUDA, 0)));
  for (int layer = 0; layer < num_layers; ++layer) {
    for (at::Tensor tensor : cache.tensors(layer)) {
      // Drawn in parts, because the drawn type is wider than the cache's.
      for (int64_t block = 0; block < tensor.size(0); block += 4096) {
        at::Tensor part = tensor.narrow(0, block, std::min<int64_t>(4096, tensor.size(0) - block));
        part.copy_(at::randn(part.sizes(), at::TensorOptions(at::kCUDA).dtype(at::kHalf)));
      }
    }
  }
  return cache;
}

}  // namespace

absl::StatusOr<AttentionResult> MeasureAttention(const AttentionCase& c) {
  return CatchTorchOr([&]() -> absl::StatusOr<AttentionResult> {
    REPRISE_RETURN_IF_ERROR(Check(c));
    AttentionResult result;
    CountWork(c, result);
    const double distinct_bytes =
        result.all_bytes - static_cast<double>(c.lens.size() - 1) * c.shared_len * KeyBytes(c);
    result.num_layers =
        std::clamp(static_cast<int>(kColdBytes / std::max(distinct_bytes, 1.0)) + 1, 2, kMaxLayers);
    const DeviceBatch made = MakeBatch(c);
    REPRISE_ASSIGN_OR_RETURN(const KvCache cache, MakeCache(c, result.num_layers, made.num_blocks));
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(ToScalarType(c.dtype));
    const at::Tensor q = at::randn(
        {result.num_layers, made.batch.num_tokens, c.num_q_heads, c.head_dim_qk}, options);
    const at::Tensor out =
        at::empty({result.num_layers, made.batch.num_tokens, c.num_q_heads, c.head_dim_v}, options);
    const AttentionParams params = {.num_q_heads = c.num_q_heads,
                                    .num_kv_heads = c.num_kv_heads,
                                    .head_dim_qk = c.head_dim_qk,
                                    .head_dim_v = c.head_dim_v,
                                    .window_left = c.window_left,
                                    .softcap = c.softcap,
                                    .rotary = c.rotary};
    REPRISE_ASSIGN_OR_RETURN(DeviceLimits limits, DeviceLimitsOf(0));
    if (c.num_sms > 0) limits.num_sms = c.num_sms;
    const KernelChoice kernels =
        KernelsFor(params, {.products = c.products, .max_tier = c.max_tier});
    REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan plan,
                             PlanTileSchedule({.dtype = c.dtype,
                                               .num_q_heads = c.num_q_heads,
                                               .num_kv_heads = c.num_kv_heads,
                                               .head_dim_qk = c.head_dim_qk,
                                               .head_dim_v = c.head_dim_v,
                                               .max_rows = made.batch.num_rows,
                                               .max_tokens = made.batch.num_tokens,
                                               .max_query_len = made.batch.max_query_len,
                                               .max_seq_len = made.batch.max_seq_len,
                                               .device = limits,
                                               .mode = c.mode,
                                               .kernels = kernels,
                                               .shared_prefix = c.shared_prefix,
                                               .shared_tiles = c.shared_tiles,
                                               .costs = c.costs}));
    const at::Tensor workspace =
        at::empty({plan.workspace_bytes}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    const TileSchedule schedule = MakeTileSchedule(plan, workspace.mutable_data_ptr());
    const BatchSchedule work = WorkOf(made.batch, WindowOf(params), schedule);
    const auto build = [&] {
      return LaunchTileSchedule(made.batch, WindowOf(params), schedule,
                                c10::cuda::getCurrentCUDAStream().stream())
          .status();
    };
    at::Tensor first_out = out[0];
    REPRISE_ASSIGN_OR_RETURN(result.kernel, PagedAttentionKernelName(params, made.batch, work, q[0],
                                                                     cache.layer(0), first_out));
    const auto call_layers = [&]() -> absl::Status {
      for (int layer = 0; layer < result.num_layers; ++layer) {
        at::Tensor layer_out = out[layer];
        REPRISE_RETURN_IF_ERROR(
            PagedAttention(params, made.batch, work, q[layer], cache.layer(layer), {layer_out}));
      }
      return absl::OkStatus();
    };
    // Calls are timed on separate streams: the writes above must be complete, and no pending work
    // may write memory that was freed in between.
    c10::cuda::device_synchronize();
    REPRISE_ASSIGN_OR_RETURN(result.tile_schedule, TimeReplays(build, {}));
    REPRISE_ASSIGN_OR_RETURN(result.call, TimeReplays(call_layers, {}));
    result.call.median_us /= result.num_layers;
    result.call.min_us /= result.num_layers;
    result.call.max_us /= result.num_layers;
    return result;
  });
}

}  // namespace reprise
