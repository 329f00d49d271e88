// Writes and reads the flat fp8 storage of an engine with byte caches, [2, num_blocks, block_size *
// num_kv_heads * head_dim] uint8, in a captured graph through views. Uses scales of every shape;
// scales on the device change between replays. The written values are checked through vLLM's
// view().

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/cache/ops/kv_scale.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/k_packed_storage.h"
#include "reprise/cache/storage/kv_cache.h"

namespace reprise {
namespace {

constexpr int kBlocks = 5;
constexpr int kBlockSize = 4;
constexpr int kHeads = 2;
constexpr int kDim = 32;
constexpr int kX = 16;  // adjacent dims of K: 16 bytes

class FlatStorageGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }

  static inline const at::Device kGpu = at::Device(at::kCUDA, 0);
};

struct Form {
  std::string name;
  at::Tensor factors;  // values on the GPU to which `scale` refers
  at::Tensor scale;    // a view: [], [heads], or [rows, heads] with stride 0
  float value;         // host scale, if there is no tensor
};

TEST_F(FlatStorageGpuTest, GraphWritesAndReadsBytesWithScalesOfEveryShape) {
  const KvLayout layout = *KvLayout::Create({.num_blocks = kBlocks,
                                             .block_size = kBlockSize,
                                             .num_kv_heads = kHeads,
                                             .head_dim_qk = kDim,
                                             .head_dim_v = kDim,
                                             .dtype = DType::kFp8E4M3,
                                             .form = KvForm::kKPacked});
  const auto floats = at::TensorOptions(kGpu).dtype(at::kFloat);
  const at::Tensor scalar = at::full({}, 1.0f, floats);
  const at::Tensor by_head = at::full({kHeads}, 1.0f, floats);
  const at::Tensor expanded = at::full({1, 1}, 1.0f, floats);
  const Form forms[] = {
      {"a float of the host", {}, {}, 0.5f},
      {"a scalar of the device", scalar, scalar, 0},
      {"one a head", by_head, by_head, 0},
      {"one, expanded to rows and heads", expanded, expanded.expand({3, kHeads}), 0}};
  for (const Form& form : forms) {
    SCOPED_TRACE(form.name);
    const at::Tensor storage =
        at::zeros(*KPackedStorageShape(layout), at::TensorOptions(kGpu).dtype(at::kByte));
    KvCache cache = *KvCache::Wrap(layout, {*SplitKPackedStorage(layout, storage)});
    const bool on_host = !form.scale.defined();
    const Scale scale =
        on_host ? Scale{.value = form.value} : *ScaleFromTensor("k_scale", form.scale, kHeads);
    cache.SetScales(0, scale, scale);
    const at::Tensor k = at::zeros({6, kHeads, kDim}, floats),
                     v = at::zeros({6, kHeads, kDim}, floats);
    const at::Tensor slots = at::full({6}, -1, at::TensorOptions(kGpu).dtype(at::kLong));
    const at::Tensor got_k = at::zeros({6, kHeads, kDim}, floats),
                     got_v = at::zeros({6, kHeads, kDim}, floats);
    CapturedWork graph([&](cudaStream_t stream) {
      const c10::cuda::CUDAStreamGuard guard(
          c10::cuda::getStreamFromExternal(stream, kGpu.index()));
      ASSERT_TRUE(WriteKv(cache.layer(0), k, v, slots).ok());
      ASSERT_TRUE(ReadKv(cache.layer(0), slots, got_k, got_v).ok());
    });
    const std::vector<std::vector<int64_t>> all_slots = {{3, 0, 7, 19, 8, 12}, {4, 18, 1, 5, 9, 2}};
    const std::vector<std::vector<float>> all_factors = {{0.5f, 0.25f}, {2.0f, 0.125f}};
    for (int replay = 0; replay < 2; ++replay) {
      SCOPED_TRACE(testing::Message() << "replay " << replay);
      storage.zero_();
      k.copy_(at::randn(k.sizes()));
      v.copy_(at::randn(v.sizes()));
      slots.copy_(at::tensor(all_slots[replay], at::kLong));
      std::vector<float> factor(kHeads, form.value);
      if (!on_host) {
        const int64_t count = form.factors.numel();
        for (int h = 0; h < kHeads; ++h) factor[h] = all_factors[replay][count == kHeads ? h : 0];
        at::Tensor(form.factors)
            .copy_(at::tensor(std::vector<float>(factor.begin(), factor.begin() + count))
                       .view(form.factors.sizes()));
      }
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      graph.Replay();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

      // vLLM: key_cache[0].view(num_blocks, heads, dim / x, -1, x); similarly for value_cache.
      const at::Tensor host = storage.cpu().view(at::kFloat8_e4m3fn).to(at::kFloat);
      const at::Tensor k_view = host[0].view({kBlocks, kHeads, kDim / kX, -1, kX});
      const at::Tensor v_view = host[1].view({kBlocks, kHeads, kDim, -1});
      int64_t num_written = 0;  // nonzero bytes
      for (int t = 0; t < 6; ++t) {
        const int64_t block = all_slots[replay][t] / kBlockSize;
        const int64_t offset = all_slots[replay][t] % kBlockSize;
        for (int h = 0; h < kHeads; ++h) {
          const auto quantised = [&](const at::Tensor& values) {
            return (values[t][h].cpu() / factor[h]).to(at::kFloat8_e4m3fn).to(at::kFloat);
          };
          const at::Tensor want_k = quantised(k), want_v = quantised(v);
          num_written += want_k.ne(0).sum().item<int64_t>() + want_v.ne(0).sum().item<int64_t>();
          ASSERT_TRUE(k_view[block][h].select(1, offset).flatten().equal(want_k)) << t << " " << h;
          ASSERT_TRUE(v_view[block][h].select(1, offset).equal(want_v)) << t << " " << h;
          ASSERT_TRUE(got_k[t][h].cpu().equal(want_k * factor[h])) << t << " " << h;
          ASSERT_TRUE(got_v[t][h].cpu().equal(want_v * factor[h])) << t << " " << h;
        }
      }
      // No other byte is written.
      EXPECT_EQ(host.ne(0).sum().item<int64_t>(), num_written);
    }
  }
}

}  // namespace
}  // namespace reprise
