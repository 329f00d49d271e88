#include "tests/benchmarks/device/cache_cases.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/ops/copy_blocks.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/storage/kv_page_layout.h"

namespace reprise {
namespace {

constexpr int kHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kBlockSize = 16;
// Several times the 60 MB of an H200's L2: the bytes that a rotation must cover before it reuses a
// buffer.
constexpr double kColdBytes = 400e6;

const at::Device kGpu = at::Device(at::kCUDA, 0);

at::TensorOptions On(at::ScalarType dtype) { return at::TensorOptions(kGpu).dtype(dtype); }

Timing Sharded(const Timing& timing, int n) {
  return {
      .median_us = timing.median_us / n, .min_us = timing.min_us / n, .max_us = timing.max_us / n};
}

struct WriteCase {
  int num_tokens;
  DType cache_dtype;
  KvOrder order;
  KvForm form;
};

std::string Describe(const WriteCase& c) {
  return absl::StrCat(c.num_tokens, " tokens into ", std::string(DTypeName(c.cache_dtype)), " ",
                      std::string(KvFormName(c.form)), " ", std::string(KvOrderName(c.order)));
}

// Writes bf16 tokens into shuffled slots, or reads them back: a graph of calls that share nothing.
absl::StatusOr<CachePoint> MeasureTokens(const WriteCase& c, bool is_write,
                                         const MemoryRates& limits) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  const bool is_latent = c.form == KvForm::kLatent;
  const int heads = is_latent ? 1 : kHeads, dim = is_latent ? 576 : kHeadDim;
  const double elements = double{1} * c.num_tokens * heads * dim * (is_latent ? 1 : 2);
  const double bytes = elements * (2 + SizeOf(c.cache_dtype));
  const int num_calls =
      static_cast<int>(std::clamp(kColdBytes / bytes, 2.0, c.num_tokens <= 256 ? 64.0 : 400.0));
  const int blocks_per_call = (c.num_tokens + kBlockSize - 1) / kBlockSize;
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create({.num_blocks = 1 + num_calls * blocks_per_call,
                                             .block_size = kBlockSize,
                                             .num_kv_heads = heads,
                                             .head_dim_qk = dim,
                                             .head_dim_v = is_latent ? 512 : dim,
                                             .dtype = c.cache_dtype,
                                             .order = c.order,
                                             .form = c.form}));
  REPRISE_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(layout, kGpu));
  REPRISE_RETURN_IF_ERROR(cache.Fill(0));
  // Rows of a fused projection: [q | k | v] with 32 q heads.
  const int64_t fused = is_latent ? dim : 32 * kHeadDim + 2 * kHeads * kHeadDim;
  const at::Tensor qkv = at::randn({int64_t{num_calls} * c.num_tokens, fused}, On(at::kBFloat16));
  const at::Tensor out_k =
      at::empty({int64_t{num_calls} * c.num_tokens, heads, dim}, On(at::kBFloat16));
  const at::Tensor out_v = is_latent ? at::Tensor() : at::empty_like(out_k);
  // Blocks are shuffled over the cache; the tokens of a block follow each other.
  const at::Tensor blocks = at::randperm(num_calls * blocks_per_call, at::kLong).add(1);
  const at::Tensor slots =
      blocks.view({-1, 1}).mul(kBlockSize).add(at::arange(kBlockSize, at::kLong)).to(kGpu);
  const auto work = [&]() -> absl::Status {
    for (int call = 0; call < num_calls; ++call) {
      const int64_t first = int64_t{call} * c.num_tokens;
      const at::Tensor of_call = slots.narrow(0, int64_t{call} * blocks_per_call, blocks_per_call)
                                     .view(-1)
                                     .narrow(0, 0, c.num_tokens);
      const auto rows = [&](const at::Tensor& t) { return t.narrow(0, first, c.num_tokens); };
      if (!is_write) {
        REPRISE_RETURN_IF_ERROR(
            ReadKv(cache.layer(0), of_call, rows(out_k), is_latent ? at::Tensor() : rows(out_v)));
        continue;
      }
      const at::Tensor k =
          rows(qkv).narrow(1, fused - (is_latent ? 1 : 2) * heads * dim, int64_t{heads} * dim);
      const at::Tensor v = is_latent
                               ? at::Tensor()
                               : rows(qkv)
                                     .narrow(1, fused - int64_t{heads} * dim, int64_t{heads} * dim)
                                     .unflatten(1, {heads, dim});
      REPRISE_RETURN_IF_ERROR(WriteKv(cache.layer(0), k.unflatten(1, {heads, dim}), v, of_call));
    }
    return absl::OkStatus();
  };
  REPRISE_ASSIGN_OR_RETURN(const Timing timing, TimeReplays(work, {}));
  return CachePoint{.operation = is_write ? "write" : "read",
                    .shape = Describe(c),
                    .bytes = bytes,
                    .timing = Sharded(timing, num_calls),
                    .plain_us = bytes / limits.copy_tb_per_s / 1e6,
                    .plain = "bytes / copy bandwidth"};
}

absl::StatusOr<std::vector<CachePoint>> MeasureWrites(bool is_write, const MemoryRates& limits) {
  using enum DType;
  std::vector<CachePoint> points;
  for (const WriteCase& c : {WriteCase{1, kBFloat16, KvOrder::kNHD, KvForm::kPair},
                             WriteCase{32, kBFloat16, KvOrder::kNHD, KvForm::kPair},
                             WriteCase{256, kBFloat16, KvOrder::kNHD, KvForm::kPair},
                             WriteCase{8192, kBFloat16, KvOrder::kNHD, KvForm::kPair},
                             WriteCase{8192, kBFloat16, KvOrder::kHND, KvForm::kPair},
                             WriteCase{8192, kBFloat16, KvOrder::kNHD, KvForm::kPacked},
                             WriteCase{8192, kBFloat16, KvOrder::kNHD, KvForm::kKPacked},
                             WriteCase{8192, kFp8E4M3, KvOrder::kNHD, KvForm::kPair},
                             WriteCase{8192, kBFloat16, KvOrder::kNHD, KvForm::kLatent}}) {
    REPRISE_ASSIGN_OR_RETURN(CachePoint point, MeasureTokens(c, is_write, limits));
    points.push_back(std::move(point));
  }
  return points;
}

// A cache of Llama-3.1-8B's shape with a quarter of its layers, in one of two layouts.
absl::StatusOr<KvCache> BlocksOf(bool has_pages, int num_blocks, int num_layers) {
  if (has_pages) {
    const KvPageLayer layer = {.num_kv_heads = kHeads,
                               .head_dim_qk = kHeadDim,
                               .head_dim_v = kHeadDim,
                               .dtype = DType::kBFloat16};
    REPRISE_ASSIGN_OR_RETURN(
        const KvPageLayout layout,
        KvPageLayout::Create({.num_blocks = num_blocks,
                              .block_size = kBlockSize,
                              .layers = std::vector<KvPageLayer>(num_layers, layer)}));
    return KvCache::Create(layout, kGpu);
  }
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create({.num_layers = num_layers,
                                                                    .num_blocks = num_blocks,
                                                                    .block_size = kBlockSize,
                                                                    .num_kv_heads = kHeads,
                                                                    .head_dim_qk = kHeadDim,
                                                                    .head_dim_v = kHeadDim,
                                                                    .dtype = DType::kBFloat16}));
  return KvCache::Create(layout, kGpu);
}

std::string ShapeOf(bool has_pages, int num_copies, int num_layers) {
  return absl::StrCat(num_copies, " blocks, ", num_layers, " layers, ",
                      has_pages ? "pages" : "layers apart");
}

absl::Status PlainCopy(void* to, const void* from, double bytes) {
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                                    c10::cuda::getCurrentCUDAStream()),
                    "cudaMemcpyAsync");
}

// Between the first half and the second half of a cache, blocks in random order.
absl::StatusOr<std::vector<CachePoint>> MeasureCopies() {
  std::vector<CachePoint> points;
  for (const bool has_pages : {false, true}) {
    for (const int num_copies : {1, 8, 32, 128, 512}) {  // 2 MB each
      c10::cuda::CUDACachingAllocator::emptyCache();
      constexpr int kLayers = 32;
      REPRISE_ASSIGN_OR_RETURN(KvCache cache, BlocksOf(has_pages, 2 * num_copies + 1, kLayers));
      REPRISE_ASSIGN_OR_RETURN(const BlockStore store, BlockStore::Over(cache, {}));
      std::vector<BlockCopy> copies(num_copies);
      for (int i = 0; i < num_copies; ++i) copies[i] = {i + 1, num_copies + 1 + i};
      std::mt19937 random(1);
      for (int i = num_copies - 1; i > 0; --i) {
        std::swap(copies[i].dst, copies[random() % (i + 1)].dst);
      }
      std::shuffle(copies.begin(), copies.end(), random);
      const double moved = double{1} * num_copies * store.bytes_per_block();
      const at::Tensor from = at::empty({static_cast<int64_t>(moved)}, On(at::kByte)).fill_(1);
      const at::Tensor to = at::empty_like(from);
      REPRISE_ASSIGN_OR_RETURN(
          const Timing plain,
          TimeReplays([&] { return PlainCopy(to.data_ptr(), from.data_ptr(), moved); }, {}));
      REPRISE_ASSIGN_OR_RETURN(const Timing timing,
                               TimeReplays([&] { return CopyBlocks(store, store, copies); }, {}));
      points.push_back({.operation = "copy",
                        .shape = ShapeOf(has_pages, num_copies, kLayers),
                        .bytes = 2 * moved,
                        .timing = timing,
                        .plain_us = plain.median_us,
                        .plain = "cudaMemcpyAsync, device to device"});
    }
  }
  return points;
}

// Time of `work` on a stream of its own, between events, enqueued and not captured.
absl::StatusOr<Timing> TimeEnqueued(absl::FunctionRef<absl::Status()> work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&begin), "cudaEventCreate"));
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&end), "cudaEventCreate"));
  const auto stream = c10::cuda::getCurrentCUDAStream();
  std::vector<double> samples;
  for (int sample = 0; sample < 8; ++sample) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin, stream), "cudaEventRecord"));
    REPRISE_RETURN_IF_ERROR(work());
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end, stream), "cudaEventRecord"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end), "cudaEventSynchronize"));
    float ms = 0;
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, begin, end), "elapsed time"));
    if (sample > 0) samples.push_back(1e3 * ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(samples.begin(), samples.end());
  return Timing{.median_us = samples[samples.size() / 2],
                .min_us = samples.front(),
                .max_us = samples.back()};
}

absl::StatusOr<std::vector<CachePoint>> MeasureSwaps() {
  std::vector<CachePoint> points;
  for (const bool has_pages : {false, true}) {
    for (const int num_copies : {1, 32, 256}) {  // 2 MB each
      c10::cuda::CUDACachingAllocator::emptyCache();
      constexpr int kLayers = 32;
      REPRISE_ASSIGN_OR_RETURN(KvCache cache, BlocksOf(has_pages, num_copies + 1, kLayers));
      REPRISE_ASSIGN_OR_RETURN(const BlockStore device, BlockStore::Over(cache, {}));
      REPRISE_ASSIGN_OR_RETURN(const BlockStore host, BlockStore::Pinned(device, num_copies));
      std::vector<BlockCopy> out(num_copies), in(num_copies);
      std::vector<int> order(num_copies);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(1));
      for (int i = 0; i < num_copies; ++i) {
        out[i] = {order[i] + 1, i};
        in[i] = {i, order[i] + 1};
      }
      const double moved = double{1} * num_copies * device.bytes_per_block();
      const at::Tensor buffer = at::empty({static_cast<int64_t>(moved)}, On(at::kByte)).fill_(1);
      void* const pinned = host.extents()[0].data;
      for (const bool is_out : {true, false}) {
        REPRISE_ASSIGN_OR_RETURN(const Timing plain, TimeEnqueued([&] {
                                   return is_out ? PlainCopy(pinned, buffer.data_ptr(), moved)
                                                 : PlainCopy(buffer.data_ptr(), pinned, moved);
                                 }));
        for (const CopyPath path : {CopyPath::kKernel, CopyPath::kCopyEngine}) {
          REPRISE_ASSIGN_OR_RETURN(const Timing timing, TimeEnqueued([&] {
                                     return is_out ? CopyBlocks(device, host, out, path)
                                                   : CopyBlocks(host, device, in, path);
                                   }));
          points.push_back(
              {.operation = is_out ? "out" : "in",
               .shape = absl::StrCat(ShapeOf(has_pages, num_copies, kLayers),
                                     path == CopyPath::kKernel ? ", kernel" : ", engine"),
               .bytes = moved,
               .timing = timing,
               .plain_us = plain.median_us,
               .plain = "cudaMemcpyAsync of pinned memory"});
        }
      }
    }
  }
  return points;
}

}  // namespace

absl::StatusOr<std::vector<CachePoint>> MeasureCacheOperation(std::string_view operation,
                                                              const MemoryRates& limits) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::vector<CachePoint>> {
    if (operation == "write") return MeasureWrites(true, limits);
    if (operation == "read") return MeasureWrites(false, limits);
    if (operation == "copy") return MeasureCopies();
    if (operation == "swap") return MeasureSwaps();
    return absl::InvalidArgumentError(
        absl::StrCat("no such operation: expected write, read, copy or swap, got ",
                     absl::string_view(operation.data(), operation.size())));
  });
}

}  // namespace reprise
