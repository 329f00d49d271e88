#include "reprise/cache/ops/copy_blocks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/storage/kv_page_layout.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

KvCache MakeCache(KvForm form, KvOrder order, int num_blocks = 8) {
  const KvLayout layout = *KvLayout::Create({.num_layers = 2,
                                             .num_blocks = num_blocks,
                                             .block_size = 3,
                                             .num_kv_heads = form == KvForm::kLatent ? 1 : 2,
                                             .head_dim_qk = 8,
                                             .head_dim_v = form == KvForm::kPair ? 5 : 8,
                                             .order = order,
                                             .form = form});
  KvCache cache = *KvCache::Create(layout, at::kCPU);
  EXPECT_TRUE(cache.Fill(kNan).ok());
  return cache;
}

// Fills block b of layer l with b * 10 + l.
void Number(const KvCache& cache) {
  for (int layer = 0; layer < cache.num_layers(); ++layer) {
    for (const at::Tensor& tensor : cache.tensors(layer)) {
      for (int block = 0; block < cache.num_blocks(); ++block) {
        at::Tensor(tensor[block]).fill_(block * 10 + layer);
      }
    }
  }
}

// Returns the number of the block whose content each block has, or -1 if its elements differ.
std::vector<int> Numbers(const KvCache& cache) {
  std::vector<int> numbers;
  for (int block = 0; block < cache.num_blocks(); ++block) {
    const float first = cache.tensors(0)[0][block].reshape(-1)[0].item<float>();
    const int number = static_cast<int>(first) / 10;
    bool is_whole = true;
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (const at::Tensor& tensor : cache.tensors(layer)) {
        is_whole = is_whole && tensor[block].eq(number * 10 + layer).all().item<bool>();
      }
    }
    numbers.push_back(is_whole ? number : -1);
  }
  return numbers;
}

TEST(CopyBlocksTest, CopiesAllLayersOfEveryLayout) {
  for (KvForm form :
       {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      SCOPED_TRACE(testing::Message() << form << " " << order);
      KvCache cache = MakeCache(form, order);
      Number(cache);
      BlockStore store = *BlockStore::Over(cache, {});
      // Includes one source with two destinations.
      const BlockCopy copies[] = {{1, 5}, {1, 6}, {3, 2}};
      ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
      EXPECT_THAT(Numbers(cache), testing::ElementsAre(0, 1, 3, 3, 4, 1, 1, 7));
    }
  }
}

TEST(CopyBlocksTest, CopiesRunInListOrder) {
  KvCache cache = MakeCache(KvForm::kPair, KvOrder::kNHD);
  Number(cache);
  BlockStore store = *BlockStore::Over(cache, {});
  const BlockCopy copies[] = {{1, 2}, {2, 3}, {4, 1}, {5, 4}, {6, 5}, {7, 5}, {6, 6}};
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  EXPECT_THAT(Numbers(cache), testing::ElementsAre(0, 4, 1, 1, 5, 7, 6, 7));
}

TEST(CopyBlocksTest, CopiesPagesOfEveryGroup) {
  const KvPageLayout layout = *KvPageLayout::Create(
      {.num_blocks = 6,
       .block_size = 4,
       .layers = {{.group = 0, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64},
                  {.group = 1, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64}}});
  KvCache cache = *KvCache::Create(layout, at::kCPU);
  ASSERT_TRUE(cache.Fill(kNan).ok());
  at::Tensor(cache.tensors(0)[1][2]).fill_(5);  // block 2 of group 0
  at::Tensor(cache.tensors(1)[1][3]).fill_(6);  // block 3 of group 1
  BlockStore store = *BlockStore::Over(cache, {});
  EXPECT_EQ(store.extents().size(), 1);
  const BlockCopy copies[] = {{2, 4}, {3, 5}};
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  EXPECT_TRUE(cache.tensors(0)[1][4].eq(5).all().item<bool>());
  EXPECT_TRUE(cache.tensors(1)[1][5].eq(6).all().item<bool>());
}

// A page is used by a group with heads, swapped to the host, and swapped in to a page that was used
// by a latent group.
TEST(CopyBlocksTest, PagesAreReusedByAnotherGroup) {
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
      at::kCPU);
  const BlockStore device = *BlockStore::Over(cache, {});
  const BlockStore host = *BlockStore::Pinned(device, 2);
  ASSERT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16);
  const at::Tensor k = at::randn({3, 2, 64}, bf16), v = at::randn({3, 2, 48}, bf16);
  const auto slots = [](int64_t block) {
    return at::tensor({block * 4 + 2, block * 4, block * 4 + 3}, at::kLong);
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

TEST(CopyBlocksTest, CopiesKeysAndValuesSeparately) {
  KvCache from = MakeCache(KvForm::kPair, KvOrder::kNHD),
          to = MakeCache(KvForm::kPair, KvOrder::kNHD, 3);
  Number(from);
  Number(to);
  const auto over = [](const KvCache& cache, KvSides sides) {
    return *BlockStore::Over(cache, {.sides = sides});
  };
  const BlockCopy copies[] = {{7, 1}};
  ASSERT_TRUE(CopyBlocks(over(from, KvSides::kKeys), over(to, KvSides::kKeys), copies).ok());
  EXPECT_TRUE(to.tensors(1)[0][1].eq(71).all().item<bool>());
  EXPECT_TRUE(to.tensors(1)[1][1].eq(11).all().item<bool>());
  ASSERT_TRUE(CopyBlocks(over(from, KvSides::kValues), over(to, KvSides::kValues), copies).ok());
  EXPECT_THAT(Numbers(to), testing::ElementsAre(0, 7, 2));
}

TEST(CopyBlocksTest, RoundTripToTheHostIsBitwiseIdentical) {
  KvCache cache = MakeCache(KvForm::kDiffKv, KvOrder::kHND);
  Number(cache);
  BlockStore device = *BlockStore::Over(cache, {});
  BlockStore host = *BlockStore::Pinned(device, 20);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_EQ(host.bytes_per_block(), device.bytes_per_block());
  const BlockCopy out[] = {{3, 19}, {4, 0}};
  ASSERT_TRUE(CopyBlocks(device, host, out).ok());
  ASSERT_TRUE(cache.Fill(kNan).ok());
  const BlockCopy in[] = {{19, 1}, {0, 2}};
  ASSERT_TRUE(CopyBlocks(host, device, in).ok());
  EXPECT_TRUE(cache.tensors(0)[0][1].eq(30).all().item<bool>());
  EXPECT_TRUE(cache.tensors(1)[0][2].eq(41).all().item<bool>());
}

TEST(CopyBlocksTest, CopiesAdditionalTensorsWithTheirBlocks) {
  KvCache cache = MakeCache(KvForm::kPair, KvOrder::kNHD);
  Number(cache);
  const at::Tensor marks = at::arange(8 * 3, at::kLong).view({8, 3});
  BlockStore store = *BlockStore::Over(cache, {.with = {marks}});
  const BlockCopy copies[] = {{1, 5}};
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  EXPECT_TRUE(at::equal(marks[5], at::tensor({3, 4, 5}, at::kLong))) << marks;
}

TEST(CopyBlocksTest, TensorListSkipsIdsOutsideTheStore) {
  KvCache cache = MakeCache(KvForm::kPair, KvOrder::kNHD);
  Number(cache);
  BlockStore store = *BlockStore::Over(cache, {});
  const at::Tensor copies =
      at::tensor({1, 5, -1, -1, 2, 8, std::numeric_limits<int>::min(), 3, 4, 6}, at::kInt)
          .view({5, 2});
  ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
  EXPECT_THAT(Numbers(cache), testing::ElementsAre(0, 1, 2, 3, 4, 1, 4, 7));
}

TEST(CopyBlocksTest, RejectsInvalidCopiesWithoutCopying) {
  KvCache cache = MakeCache(KvForm::kPair, KvOrder::kNHD);
  KvCache other = MakeCache(KvForm::kDiffKv, KvOrder::kNHD);
  Number(cache);
  BlockStore store = *BlockStore::Over(cache, {});
  BlockStore unlike = *BlockStore::Over(other, {});
  const auto message = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(CopyBlocks(store, store, {{{1, 2}, {3, 8}}})),
              HasSubstr("copies[1].dst must be a block of the store: expected 0 to 7, got 8"));
  EXPECT_THAT(message(CopyBlocks(store, store, {{{1, 2}, {-1, 3}}})), HasSubstr("copies[1].src"));
  EXPECT_THAT(message(CopyBlocks(store, unlike, {{{1, 2}}})),
              HasSubstr("src and dst must have the same shape"));
  EXPECT_THAT(message(CopyBlocks(store, store, at::zeros({2, 3}, at::kInt))),
              HasSubstr("copies must be"));
  EXPECT_THAT(message(CopyBlocks(store, store, at::zeros({2, 2}, at::kLong))), HasSubstr("copies"));
  EXPECT_EQ(CopyBlocks(store, store, {{{1, 2}}}, CopyPath::kCopyEngine).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Numbers(cache), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(message(BlockStore::Pinned(store, 0).status()), HasSubstr("got 0"));
  EXPECT_THAT(message(BlockStore::Over(cache, {.with = {at::zeros({7, 3})}}).status()),
              HasSubstr("with[0] must have one row per block: expected 8, got 7"));
  EXPECT_THAT(
      message(BlockStore::Over(cache, {.with = {at::zeros({8, 3}), at::Tensor()}}).status()),
      HasSubstr("with[1] is missing"));
}

// Compares the copies with a model of numbers, with lists of every kind.
TEST(CopyBlocksTest, RandomListsMatchSequentialCopies) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  KvCache cache = MakeCache(KvForm::kPacked, KvOrder::kHND);
  Number(cache);
  BlockStore store = *BlockStore::Over(cache, {});
  std::vector<int> model = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int round = 0; round < 300; ++round) {
    std::vector<BlockCopy> copies(random() % 6);
    for (BlockCopy& copy : copies) {
      copy = {static_cast<int32_t>(random() % 8), static_cast<int32_t>(random() % 8)};
      model[copy.dst] = model[copy.src];
    }
    ASSERT_TRUE(CopyBlocks(store, store, copies).ok());
    ASSERT_EQ(Numbers(cache), model);
    if (round % 20 == 19) {
      Number(cache);
      model = {0, 1, 2, 3, 4, 5, 6, 7};
    }
  }
}

}  // namespace
}  // namespace reprise
