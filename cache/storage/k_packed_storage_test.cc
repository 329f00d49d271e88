#include "reprise/cache/storage/k_packed_storage.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvLayout LayoutOf(KvForm form, DType dtype) {
  return *KvLayout::Create({.num_blocks = 3,
                            .block_size = 4,
                            .num_kv_heads = 2,
                            .head_dim_qk = 16,
                            .head_dim_v = 16,
                            .dtype = dtype,
                            .form = form});
}

// Element (block 2, head 1, dim 13, token 3) must have the offset that vLLM's view() gives it.
TEST(KPackedStorageTest, ViewsMatchTheOffsetsOfVllm) {
  const at::Tensor storage = at::zeros({2, 3, 4 * 2 * 16}, at::kHalf);
  const KvLayout layout = LayoutOf(KvForm::kKPacked, DType::kFloat16);
  std::vector<at::Tensor> views = *SplitKPackedStorage(layout, storage);
  ASSERT_EQ(views.size(), 2);
  const at::Tensor k = storage[0].view({3, 2, 16 / 8, 4, 8}), v = storage[1].view({3, 2, 16, 4});
  EXPECT_EQ(views[0].sizes(), k.sizes());
  EXPECT_EQ(views[0].strides(), k.strides());
  EXPECT_EQ(views[0].data_ptr(), k.data_ptr());
  EXPECT_EQ(views[1].strides(), v.strides());
  EXPECT_EQ(views[1].data_ptr(), v.data_ptr());

  KvCache cache = *KvCache::Wrap(layout, {std::move(views)});
  const at::Tensor values = at::full({1, 2, 16}, 3.0f);
  ASSERT_TRUE(WriteKv(cache.layer(0), values, values, at::tensor({11}, at::kLong)).ok());
  EXPECT_EQ(k[2][1][1][3][5].item<float>(), 3);
  EXPECT_EQ(v[2][1][13][3].item<float>(), 3);
  EXPECT_EQ(storage.sum().item<float>(), 3 * 2 * 2 * 16);
}

TEST(KPackedStorageTest, AcceptsBytesForFp8) {
  const KvLayout layout = LayoutOf(KvForm::kKPacked, DType::kFp8E4M3);
  const at::Tensor storage = at::zeros(*KPackedStorageShape(layout), at::kByte);
  KvCache cache = *KvCache::Wrap(layout, {*SplitKPackedStorage(layout, storage)});
  const at::Tensor ones = at::ones({1, 2, 16});
  ASSERT_TRUE(WriteKv(cache.layer(0), ones, ones, at::tensor({0}, at::kLong)).ok());
  EXPECT_EQ(storage[0][0][0].item<uint8_t>(), 0x38);  // 1.0 in e4m3: exponent 7
}

// Matches vLLM's get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size).
TEST(KPackedStorageTest, ShapeMatchesVllm) {
  EXPECT_THAT(*KPackedStorageShape(LayoutOf(KvForm::kKPacked, DType::kFloat16)),
              ElementsAre(2, 3, 4 * 2 * 16));
  const absl::Status refused =
      KPackedStorageShape(LayoutOf(KvForm::kPacked, DType::kFloat16)).status();
  EXPECT_EQ(refused.message(),
            "layout must be K-packed with equal head dims: got packed with 16 and 16");
}

TEST(KPackedStorageTest, RejectsOtherStorage) {
  const auto message = [](KvForm form, const at::Tensor& storage) {
    absl::Status status = SplitKPackedStorage(LayoutOf(form, DType::kFloat32), storage).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(KvForm::kPair, at::zeros({2, 3, 128})), HasSubstr("must be K-packed"));
  EXPECT_THAT(message(KvForm::kKPacked, at::zeros({2, 3, 127})),
              HasSubstr("expected [2, 3, 128], got [2, 3, 127]"));
  EXPECT_THAT(message(KvForm::kKPacked, at::zeros({3, 2, 128})), HasSubstr("got [3, 2, 128]"));
  EXPECT_THAT(message(KvForm::kKPacked, at::zeros({2, 128, 3}).transpose(1, 2)),
              HasSubstr("with strides"));
  EXPECT_THAT(message(KvForm::kKPacked, at::Tensor()), HasSubstr("storage is missing"));
}

}  // namespace
}  // namespace reprise
