#include "reprise/cache/ops/kv_swapper.h"

#include <ATen/ops/isnan.h>

#include <limits>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

KvCache MakeCache() {
  const KvLayout layout = *KvLayout::Create({.num_layers = 2,
                                             .num_blocks = 6,
                                             .block_size = 4,
                                             .num_kv_heads = 2,
                                             .head_dim_qk = 8,
                                             .head_dim_v = 8});
  KvCache cache = *KvCache::Create(layout, at::kCPU);
  EXPECT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  return cache;
}

TEST(KvSwapperTest, SwapInRestoresContentInOtherBlocks) {
  KvCache cache = MakeCache();
  std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 3});
  EXPECT_EQ(swapper->host_blocks().num_blocks(), 3);
  for (int layer : {0, 1}) at::Tensor(cache.tensors(layer)[1][4]).fill_(7 + layer);
  const BlockCopy out[] = {{.src = 4, .dst = 2}};
  absl::StatusOr<SwapTicket> ticket = swapper->SwapOut(out);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(swapper->Passed(*ticket));
  ASSERT_TRUE(cache.Fill(0).ok());
  // One host block restored to two blocks.
  const BlockCopy in[] = {{.src = 2, .dst = 1}, {.src = 2, .dst = 5}};
  ticket = swapper->SwapIn(in);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(*ticket, SwapTicket(2));
  EXPECT_TRUE(swapper->Await(*ticket).ok());
  EXPECT_TRUE(swapper->Wait(*ticket).ok());
  for (int block : {1, 5}) {
    EXPECT_TRUE(cache.tensors(1)[1][block].eq(8).all().item<bool>());
    EXPECT_TRUE(at::isnan(cache.tensors(1)[0][block]).all().item<bool>());  // NaNs are copied, too
  }
  EXPECT_EQ(swapper->stream(), nullptr);
}

TEST(KvSwapperTest, RejectsBlocksOutsideTheirStore) {
  KvCache cache = MakeCache();
  std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 3});
  const BlockCopy copies[] = {{.src = 1, .dst = 3}};
  EXPECT_THAT(std::string(swapper->SwapOut(copies).status().message()),
              HasSubstr("copies[0].dst must be a block of the store: expected 0 to 2, got 3"));
  const BlockCopy back[] = {{.src = 3, .dst = 1}};
  EXPECT_THAT(std::string(swapper->SwapIn(back).status().message()), HasSubstr("copies[0].src"));
  EXPECT_EQ(swapper->SwapOut({})->value(), 1);  // rejected calls use no ticket
}

TEST(KvSwapperTest, RejectsOptionsOutOfRange) {
  KvCache cache = MakeCache();
  EXPECT_EQ(KvSwapper::Create(cache, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvSwapperDeathTest, DiesOnUnknownTickets) {
  KvCache cache = MakeCache();
  std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 1});
  EXPECT_DEATH(swapper->Passed(SwapTicket(1)), "no swap has ticket 1");
  EXPECT_DEATH((void)swapper->Await(SwapTicket()), "no swap has ticket 0");
}

}  // namespace
}  // namespace reprise
