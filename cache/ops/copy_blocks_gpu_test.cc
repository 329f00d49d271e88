#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/base/testing/test_seed.h"
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

class CopyBlocksGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }

  static inline const at::Device kGpu = at::Device(at::kCUDA, 0);
};

KvLayoutOptions Options(KvForm form, KvOrder order, KvLayers layers) {
  return {.num_layers = 3,
          .num_blocks = 40,
          .block_size = 5,
          .num_kv_heads = form == KvForm::kLatent ? 1 : 2,
          .head_dim_qk = 64,
          .head_dim_v = form == KvForm::kPacked ? 64 : 48,
          .dtype = DType::kBFloat16,
          .order = order,
          .form = form,
          .layers = layers};
}

// Returns all tensors of the cache as bytes on the host.
std::vector<at::Tensor> Bytes(const KvCache& cache) {
  std::vector<at::Tensor> bytes;
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (const at::Tensor& tensor : cache.tensors(layer)) {
      bytes.push_back(tensor.cpu().contiguous().view(at::kByte));
    }
  }
  return bytes;
}

// Fills the cache on the GPU and the cache on the CPU with the same random bits, including NaNs.
void Randomise(KvCache& gpu, KvCache& cpu) {
  for (int layer = 0; layer < gpu.num_layers(); ++layer) {
    for (size_t i = 0; i < gpu.tensors(layer).size(); ++i) {
      at::Tensor host = cpu.tensors(layer)[i];
      const at::Tensor bits =
          at::randint(-32768, 32768, host.sizes(), at::TensorOptions().dtype(at::kShort));
      host.copy_(bits.view(at::kBFloat16));
      at::Tensor(gpu.tensors(layer)[i]).copy_(host);
    }
  }
}

std::vector<BlockCopy> RandomCopies(std::mt19937& random, int n, int num_src, int num_dst) {
  std::vector<BlockCopy> copies(n);
  for (BlockCopy& copy : copies) {
    copy = {static_cast<int32_t>(random() % num_src), static_cast<int32_t>(random() % num_dst)};
  }
  return copies;
}

TEST_F(CopyBlocksGpuTest, SmallCopiesMatchTheHostInEveryLayout) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (KvForm form :
       {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      for (KvLayers layers : {KvLayers::kApart, KvLayers::kWithinBlock}) {
        SCOPED_TRACE(testing::Message() << form << " " << order << " " << layers);
        const KvLayout layout = *KvLayout::Create(Options(form, order, layers));
        KvCache gpu = *KvCache::Create(layout, kGpu), cpu = *KvCache::Create(layout, at::kCPU);
        Randomise(gpu, cpu);
        const BlockStore on_gpu = *BlockStore::Over(gpu, {}), on_cpu = *BlockStore::Over(cpu, {});
        for (int n : {1, 7, 60}) {
          for (CopyPath path : {CopyPath::kAuto, CopyPath::kKernel, CopyPath::kCopyEngine}) {
            const std::vector<BlockCopy> copies = RandomCopies(random, n, 40, 40);
            ASSERT_TRUE(CopyBlocks(on_gpu, on_gpu, copies, path).ok());
            ASSERT_TRUE(CopyBlocks(on_cpu, on_cpu, copies).ok());
          }
        }
        const std::vector<at::Tensor> got = Bytes(gpu), expected = Bytes(cpu);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(at::equal(got[i], expected[i])) << i;
      }
    }
  }
}

TEST_F(CopyBlocksGpuTest, SmallBlocksAreCopiedToPinnedMemoryAndBack) {
  std::mt19937 random(3);
  for (KvSides sides : {KvSides::kBoth, KvSides::kKeys, KvSides::kValues}) {
    for (CopyPath path : {CopyPath::kAuto, CopyPath::kKernel, CopyPath::kCopyEngine}) {
      const KvLayout layout =
          *KvLayout::Create(Options(KvForm::kPair, KvOrder::kHND, KvLayers::kApart));
      KvCache gpu = *KvCache::Create(layout, kGpu), cpu = *KvCache::Create(layout, at::kCPU);
      Randomise(gpu, cpu);
      const BlockStore on_gpu = *BlockStore::Over(gpu, {.sides = sides});
      const BlockStore on_cpu = *BlockStore::Over(cpu, {.sides = sides});
      const BlockStore pinned = *BlockStore::Pinned(on_gpu, 50);
      const BlockStore host = *BlockStore::Pinned(on_cpu, 50);
      std::vector<BlockCopy> out = RandomCopies(random, 30, 40, 50);
      for (int32_t i = 0; i < 8; ++i) out.push_back({20 + i, 10 + i});  // adjacent blocks
      const std::vector<BlockCopy> in = RandomCopies(random, 30, 50, 40);
      ASSERT_TRUE(CopyBlocks(on_gpu, pinned, out, path).ok());
      ASSERT_TRUE(CopyBlocks(pinned, on_gpu, in, path).ok());
      ASSERT_TRUE(CopyBlocks(on_cpu, host, out).ok());
      ASSERT_TRUE(CopyBlocks(host, on_cpu, in).ok());
      const std::vector<at::Tensor> got = Bytes(gpu), expected = Bytes(cpu);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(at::equal(got[i], expected[i])) << i;
    }
  }
}

// Copies from one cache to another with a different number of blocks on the same GPU: by lists in
// host memory on each path, then by a list in device memory in a captured graph.
TEST_F(CopyBlocksGpuTest, CopiesBlocksBetweenTwoCaches) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (KvForm form : {KvForm::kPair, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      SCOPED_TRACE(testing::Message() << form << " " << order);
      const KvLayout from_layout = *KvLayout::Create(Options(form, order, KvLayers::kApart));
      KvLayoutOptions smaller = Options(form, order, KvLayers::kApart);
      smaller.num_blocks = 27;
      const KvLayout to_layout = *KvLayout::Create(smaller);
      KvCache from = *KvCache::Create(from_layout, kGpu), to = *KvCache::Create(to_layout, kGpu);
      KvCache host_from = *KvCache::Create(from_layout, at::kCPU);
      KvCache host_to = *KvCache::Create(to_layout, at::kCPU);
      Randomise(from, host_from);
      Randomise(to, host_to);
      const BlockStore from_store = *BlockStore::Over(from, {}),
                       to_store = *BlockStore::Over(to, {});
      const auto note = [&](const std::vector<BlockCopy>& copies) {
        for (const BlockCopy& copy : copies) {
          for (int layer = 0; layer < 3; ++layer) {
            for (size_t i = 0; i < host_to.tensors(layer).size(); ++i) {
              at::Tensor(host_to.tensors(layer)[i][copy.dst])
                  .copy_(host_from.tensors(layer)[i][copy.src]);
            }
          }
        }
      };
      const auto check = [&] {
        const std::vector<at::Tensor> got = Bytes(to), want = Bytes(host_to);
        for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(at::equal(got[i], want[i])) << i;
      };
      for (CopyPath path : {CopyPath::kAuto, CopyPath::kKernel, CopyPath::kCopyEngine}) {
        const std::vector<BlockCopy> copies = RandomCopies(random, 20, 40, 27);
        ASSERT_TRUE(CopyBlocks(from_store, to_store, copies, path).ok());
        note(copies);
        check();
      }
      at::Tensor list = at::full({9, 2}, -1, at::TensorOptions(kGpu).dtype(at::kInt));
      CapturedWork graph([&](cudaStream_t stream) {
        const c10::cuda::CUDAStreamGuard guard(
            c10::cuda::getStreamFromExternal(stream, kGpu.index()));
        ASSERT_TRUE(CopyBlocks(from_store, to_store, list).ok());
      });
      for (int replay = 0; replay < 3; ++replay) {
        Randomise(from, host_from);
        std::vector<BlockCopy> copies;
        at::Tensor entries = at::full({9, 2}, -1, at::kInt);
        for (int i = 0; i < 5; ++i) {
          copies.push_back({static_cast<int32_t>(random() % 40), 3 * i + replay});
          entries[i][0] = copies.back().src;
          entries[i][1] = copies.back().dst;
        }
        list.copy_(entries);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        graph.Replay();
        note(copies);
        check();
      }
      const std::vector<at::Tensor> source = Bytes(host_from), after = Bytes(from);
      for (size_t i = 0; i < after.size(); ++i) ASSERT_TRUE(at::equal(after[i], source[i])) << i;
    }
  }
}

// A page is used by a group with heads, swapped to the host, and swapped in to a page that was used
// by a latent group.
TEST_F(CopyBlocksGpuTest, SmallPagesAreReusedByAnotherGroup) {
  const KvPageLayer heads = {.group = 0,
                             .num_kv_heads = 2,
                             .head_dim_qk = 64,
                             .head_dim_v = 48,
                             .dtype = DType::kBFloat16,
                             .order = KvOrder::kHND};
  const KvPageLayer latent = {.group = 1,
                              .num_kv_heads = 1,
                              .head_dim_qk = 576,
                              .head_dim_v = 512,
                              .dtype = DType::kFp8E4M3,
                              .form = KvForm::kLatent};
  KvCache cache = *KvCache::Create(
      *KvPageLayout::Create({.num_blocks = 6, .block_size = 4, .layers = {heads, latent, heads}}),
      kGpu);
  const BlockStore device = *BlockStore::Over(cache, {});
  const BlockStore host = *BlockStore::Pinned(device, 2);
  ASSERT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  const auto bf16 = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  const at::Tensor k = at::randn({3, 2, 64}, bf16), v = at::randn({3, 2, 48}, bf16);
  const auto slots = [](int64_t block) {
    return at::tensor({block * 4 + 2, block * 4, block * 4 + 3}, at::kLong).to(kGpu);
  };
  for (int layer : {0, 2}) ASSERT_TRUE(WriteKv(cache.layer(layer), k, v, slots(1)).ok());
  const BlockCopy out[] = {{1, 1}}, in[] = {{1, 5}};
  ASSERT_TRUE(CopyBlocks(device, host, out).ok());
  // In the meantime, the latent group uses both pages.
  const at::Tensor dense = at::randn({3, 1, 576}, bf16);
  for (int block : {1, 5}) {
    ASSERT_TRUE(WriteKv(cache.layer(1), dense, at::Tensor(), slots(block)).ok());
  }
  ASSERT_TRUE(CopyBlocks(host, device, in).ok());
  for (int layer : {0, 2}) {
    const at::Tensor got_k = at::empty_like(k), got_v = at::empty_like(v);
    ASSERT_TRUE(ReadKv(cache.layer(layer), slots(5), got_k, got_v).ok());
    EXPECT_TRUE(got_k.equal(k));
    EXPECT_TRUE(got_v.equal(v));
  }
  const at::Tensor got = at::empty_like(dense);
  ASSERT_TRUE(ReadKv(cache.layer(1), slots(1), got, at::Tensor()).ok());
  EXPECT_TRUE(got.equal(dense.to(at::kFloat8_e4m3fn).to(at::kBFloat16)));
  // Memory that was not written is still NaN.
  EXPECT_TRUE(cache.tensors(0)[0][5].select(0, 1).isnan().all().item<bool>());
  EXPECT_TRUE(cache.tensors(2)[1][3].isnan().all().item<bool>());
}

TEST_F(CopyBlocksGpuTest, SmallUnalignedBlocksAreCopiedByteByByte) {
  KvLayoutOptions options = Options(KvForm::kPair, KvOrder::kNHD, KvLayers::kWithinBlock);
  options.dtype = DType::kFp8E4M3;
  options.block_size = 1;
  options.num_kv_heads = 1;
  options.head_dim_qk = 3;
  options.head_dim_v = 5;
  KvCache gpu = *KvCache::Create(*KvLayout::Create(options), kGpu);
  ASSERT_TRUE(gpu.Fill(0).ok());
  at::Tensor(gpu.tensors(1)[1][7]).fill_(1.0f);
  const BlockStore store = *BlockStore::Over(gpu, {});
  EXPECT_EQ(store.device_extents().word_bytes, 1);
  const BlockCopy copies[] = {{7, 39}, {7, 8}};
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  const at::Tensor v = gpu.tensors(1)[1].to(at::kFloat).cpu();
  EXPECT_EQ(v[39].sum().item<float>(), 5);
  EXPECT_EQ(v[8].sum().item<float>(), 5);
  EXPECT_EQ(v.sum().item<float>(), 15);
  EXPECT_EQ(gpu.tensors(0)[1].to(at::kFloat).sum().item<float>(), 0);
}

// A long list with one source and many destinations, in one graph node that rereads the list in
// each replay.
TEST_F(CopyBlocksGpuTest, DeviceListIsOneGraphNode) {
  KvLayoutOptions options = Options(KvForm::kPair, KvOrder::kNHD, KvLayers::kApart);
  options.num_blocks = 9000;
  const KvLayout layout = *KvLayout::Create(options);
  KvCache gpu = *KvCache::Create(layout, kGpu);
  const BlockStore store = *BlockStore::Over(gpu, {});
  constexpr int kCopies = 6000;
  at::Tensor list = at::empty({kCopies, 2}, at::kInt);
  for (int i = 0; i < kCopies; ++i) {
    list[i][0] = 1;
    list[i][1] = i % 100 == 99 ? -1 : 2 + i;
  }
  list[5][0] = 9000;  // outside the store
  at::Tensor on_gpu = list.to(kGpu);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, kGpu.index()));
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const absl::Status status = CopyBlocks(store, store, on_gpu);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status;
  }
  size_t num_nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
  EXPECT_EQ(num_nodes, 1);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());

  ASSERT_TRUE(gpu.Fill(0).ok());
  at::Tensor(gpu.tensors(2)[0][1]).fill_(1.0f);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  at::Tensor ones = gpu.tensors(2)[0].flatten(1).eq(1).all(1).cpu();
  for (int block = 0; block < 9000; ++block) {
    const int i = block - 2;
    const bool is_copied = i >= 0 && i < kCopies && i % 100 != 99 && i != 5;
    ASSERT_EQ(ones[block].item<bool>(), is_copied || block == 1) << block;
  }
  ASSERT_TRUE(gpu.Fill(0).ok());
  at::Tensor(gpu.tensors(2)[0][1]).fill_(1.0f);
  on_gpu.fill_(-1);
  on_gpu[17].copy_(at::tensor({1, 8999}, at::kInt));
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ones = gpu.tensors(2)[0].flatten(1).eq(1).all(1).cpu();
  EXPECT_EQ(ones.sum().item<int64_t>(), 2);
  EXPECT_TRUE(ones[8999].item<bool>());
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// One graph copies the keys and another the values, over one list that changes.
TEST_F(CopyBlocksGpuTest, SmallKeysAndValuesAreCopiedSeparatelyInAGraph) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (KvForm form : {KvForm::kPair, KvForm::kKPacked}) {
    SCOPED_TRACE(testing::Message() << form);
    const KvLayout layout = *KvLayout::Create(Options(form, KvOrder::kNHD, KvLayers::kApart));
    KvCache gpu = *KvCache::Create(layout, kGpu), cpu = *KvCache::Create(layout, at::kCPU);
    Randomise(gpu, cpu);
    at::Tensor list = at::full({6, 2}, -1, at::TensorOptions(kGpu).dtype(at::kInt));
    std::vector<BlockStore> stores;
    for (KvSides sides : {KvSides::kKeys, KvSides::kValues}) {
      stores.push_back(*BlockStore::Over(gpu, {.sides = sides}));
    }
    std::vector<std::unique_ptr<CapturedWork>> graphs;
    for (const BlockStore& store : stores) {
      graphs.push_back(std::make_unique<CapturedWork>([&](cudaStream_t stream) {
        const c10::cuda::CUDAStreamGuard guard(
            c10::cuda::getStreamFromExternal(stream, kGpu.index()));
        ASSERT_TRUE(CopyBlocks(store, store, list).ok());
      }));
    }
    for (int replay = 0; replay < 6; ++replay) {
      const int side = replay % 2;  // tensor 0 is K, tensor 1 is V
      at::Tensor entries = at::full({6, 2}, -1, at::kInt);
      for (int i = 0; i < 4; ++i) {
        const int src = static_cast<int>(random() % 20), dst = 20 + 5 * i + replay % 5;
        entries[i][0] = src;
        entries[i][1] = dst;
        for (int layer = 0; layer < 3; ++layer) {
          at::Tensor(cpu.tensors(layer)[side][dst]).copy_(cpu.tensors(layer)[side][src]);
        }
      }
      list.copy_(entries);
      graphs[side]->Replay();
      const std::vector<at::Tensor> got = Bytes(gpu), want = Bytes(cpu);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(at::equal(got[i], want[i])) << "tensor " << i << ", replay " << replay;
      }
    }
  }
}

// More copies than fit in one launch, and blocks beyond 2^32 bytes.
TEST_F(CopyBlocksGpuTest, CopiesLongListsAndBlocksBeyond4GiB) {
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < size_t{9} << 30) GTEST_SKIP() << "needs 9 GiB of free device memory";
  constexpr int kBlocks = 70000;  // 65,536 bytes each: 4.6e9 bytes
  const KvLayout layout = *KvLayout::Create({.num_blocks = kBlocks,
                                             .block_size = 16,
                                             .num_kv_heads = 8,
                                             .head_dim_qk = 128,
                                             .head_dim_v = 128,
                                             .dtype = DType::kBFloat16,
                                             .form = KvForm::kPacked});
  KvCache gpu = *KvCache::Create(layout, kGpu);
  ASSERT_TRUE(gpu.Fill(0).ok());
  const BlockStore store = *BlockStore::Over(gpu, {});
  at::Tensor(gpu.tensors(0)[0][3]).fill_(1.0f);
  std::vector<BlockCopy> copies;
  for (int i = 0; i < 5000; ++i) copies.push_back({3, kBlocks - 1 - i});
  copies.push_back({kBlocks - 1, 10});  // reads a block that the list wrote
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  const at::Tensor sums = gpu.tensors(0)[0].flatten(1).select(1, 32767).to(at::kFloat).cpu();
  EXPECT_EQ(sums.sum().item<float>(), 5002);
  EXPECT_EQ(sums[10].item<float>(), 1);
  EXPECT_EQ(sums.narrow(0, kBlocks - 5000, 5000).sum().item<float>(), 5000);
}

}  // namespace
}  // namespace reprise
