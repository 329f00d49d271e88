#include "reprise/attention/torch_ops/kv_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

at::Tensor Cache(at::IntArrayRef shape, at::ScalarType type = at::kHalf) {
  return at::empty(shape, at::TensorOptions().dtype(type));
}

// Address of element (block, token, head, dim) of `tensor`, which has NHD order.
const void* At(const at::Tensor& tensor, int block, int token, int head, int dim) {
  return tensor.select(0, block).select(0, token).select(0, head).select(0, dim).const_data_ptr();
}

const void* At(const KvLayer& kv, const KvView& view, int block, int token, int head, int dim) {
  return static_cast<const char*>(view.data) +
         view.Offset(block, token, head, dim) * SizeOf(kv.dtype);
}

std::string Refusal(const KvTensors& tensors) {
  const absl::StatusOr<KvLayer> layer = KvLayerOf(tensors);
  EXPECT_EQ(layer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(layer.status().message());
}

TEST(KvTensorsTest, NhdAndHndAddressTheSameElements) {
  const at::Tensor k = Cache({4, 8, 2, 32});
  const at::Tensor v = Cache({4, 8, 2, 16});
  for (const bool is_hnd : {false, true}) {
    const KvLayer kv = *KvLayerOf({.k_cache = is_hnd ? k.transpose(1, 2) : k,
                                   .v_cache = is_hnd ? v.transpose(1, 2) : v,
                                   .layout = is_hnd ? "HND" : "NHD"});
    EXPECT_EQ(kv.num_blocks, 4);
    EXPECT_EQ(kv.block_size, 8);
    EXPECT_EQ(kv.num_kv_heads, 2);
    EXPECT_EQ(kv.head_dim_qk, 32);
    EXPECT_EQ(kv.head_dim_v, 16);
    EXPECT_EQ(At(kv, kv.k, 3, 5, 1, 7), At(k, 3, 5, 1, 7));
    EXPECT_EQ(At(kv, kv.v, 3, 5, 1, 7), At(v, 3, 5, 1, 7));
  }
}

TEST(KvTensorsTest, ViewsOfOneTensorKeepTheirStrides) {
  const at::Tensor packed = Cache({4, 2, 8, 2, 32});
  const KvLayer kv = *KvLayerOf({.k_cache = packed.select(1, 0), .v_cache = packed.select(1, 1)});
  EXPECT_EQ(At(kv, kv.v, 2, 3, 1, 5), At(packed.select(1, 1), 2, 3, 1, 5));

  const at::Tensor latent = Cache({4, 8, 576}).unsqueeze(2);
  const KvLayer mla = *KvLayerOf({.k_cache = latent, .v_cache = latent.narrow(3, 0, 512)});
  EXPECT_EQ(mla.head_dim_v, 512);
  EXPECT_EQ(mla.k.data, mla.v.data);
  EXPECT_EQ(mla.v.token_stride, 576);
}

TEST(KvTensorsTest, KPackedUsesTheChunkSizeOfTheTensor) {
  const at::Tensor k = Cache({3, 2, 4, 16, 8});  // head_dim_qk 32
  const at::Tensor v = Cache({3, 2, 32, 16});
  const KvLayer kv = *KvLayerOf({.k_cache = k, .v_cache = v, .layout = "K-packed"});
  EXPECT_EQ(kv.head_dim_qk, 32);
  EXPECT_EQ(kv.block_size, 16);
  EXPECT_EQ(At(kv, kv.k, 2, 9, 1, 21),
            k.select(0, 2).select(0, 1).select(0, 2).select(0, 9).select(0, 5).const_data_ptr());
  EXPECT_EQ(At(kv, kv.v, 2, 9, 1, 21),
            v.select(0, 2).select(0, 1).select(0, 21).select(0, 9).const_data_ptr());
}

TEST(KvTensorsTest, KPackedFp8KeepsTheChunkSizeOfTheModel) {
  // The x of 16-bit elements in an fp8 cache. The 24 dims are not a multiple of 16 bytes.
  const at::Tensor k = Cache({3, 2, 3, 16, 8}, at::kByte);
  const at::Tensor v = Cache({3, 2, 24, 16}, at::kByte);
  const KvLayer kv =
      *KvLayerOf({.k_cache = k, .v_cache = v, .layout = "K-packed", .kv_dtype = "fp8"});
  EXPECT_EQ(kv.head_dim_qk, 24);
  EXPECT_EQ(kv.k.dim_chunk, 8);
  EXPECT_EQ(At(kv, kv.k, 2, 9, 1, 21),
            k.select(0, 2).select(0, 1).select(0, 2).select(0, 9).select(0, 5).const_data_ptr());
  EXPECT_EQ(At(kv, kv.v, 2, 9, 1, 21),
            v.select(0, 2).select(0, 1).select(0, 21).select(0, 9).const_data_ptr());
}

TEST(KvTensorsTest, ACacheMayHaveNoBlocks) {
  const at::Tensor none = Cache({0, 8, 2, 32});
  const KvLayer kv = *KvLayerOf({.k_cache = none, .v_cache = none});
  EXPECT_EQ(kv.num_blocks, 0);
  EXPECT_EQ(kv.block_size, 8);
}

TEST(KvTensorsTest, Uint8IsFp8IfKvDtypeNamesAnFp8Type) {
  const at::Tensor bytes = Cache({4, 8, 2, 32}, at::kByte);
  const KvLayer kv = *KvLayerOf({.k_cache = bytes, .v_cache = bytes, .kv_dtype = "fp8_e5m2"});
  EXPECT_EQ(kv.dtype, DType::kFp8E5M2);
  EXPECT_THAT(Refusal({.k_cache = bytes, .v_cache = bytes}), HasSubstr("uint8 with kv_dtype"));
  EXPECT_THAT(Refusal({.k_cache = bytes, .v_cache = bytes, .kv_dtype = "float16"}),
              HasSubstr("expected float16, got Byte"));
  EXPECT_THAT(Refusal({.k_cache = bytes, .v_cache = bytes, .kv_dtype = "fp7"}),
              HasSubstr("got fp7"));
  // Also applies to keys outside a cache.
  EXPECT_EQ(Fp8Of(bytes, "fp8_e5m2").scalar_type(), at::kFloat8_e5m2);
  EXPECT_EQ(Fp8Of(bytes, "fp8_e5m2").const_data_ptr(), bytes.const_data_ptr());
  EXPECT_EQ(Fp8Of(bytes, "float16").scalar_type(), at::kByte);
  EXPECT_EQ(Fp8Of(bytes, std::nullopt).scalar_type(), at::kByte);
}

TEST(KvTensorsTest, AcceptsScalesOfEveryForm) {
  const auto scale = [](const at::Tensor& tensor) {
    return ScaleOf("k_scale", tensor, /*num_kv_heads=*/2, at::kCPU);
  };
  EXPECT_EQ(ScaleOf("k_scale", std::nullopt, 2, at::kCPU)->value, 1.0f);
  EXPECT_EQ(scale(at::full({}, 0.5f))->value, 0.5f);

  const at::Tensor heads = at::full({2}, 0.5f);
  EXPECT_EQ(scale(heads)->data, heads.const_data_ptr());
  EXPECT_EQ(scale(heads)->head_stride, 1);
  EXPECT_EQ(scale(heads)->row_stride, 0);

  const Scale expanded = *scale(at::full({1, 1}, 0.5f).expand({7, 2}));
  EXPECT_EQ(expanded.row_stride, 0);
  EXPECT_EQ(expanded.head_stride, 0);
  EXPECT_EQ(scale(at::full({7, 2}, 0.5f))->row_stride, 2);

  EXPECT_THAT(std::string(scale(at::full({3}, 0.5f)).status().message()),
              HasSubstr("expected [2], got [3]"));
  EXPECT_THAT(std::string(scale(at::full({2}, 0.5, at::kDouble)).status().message()),
              HasSubstr("dtype"));
}

TEST(KvTensorsTest, RopePartHasASeparateTypeAndScale) {
  const at::Tensor latent = at::zeros({4, 8, 1, 512}, at::kByte);
  const at::Tensor rope = Cache({4, 8, 1, 80}).slice(3, 0, 64);
  const at::Tensor scale = at::full({1, 1}, 0.5f).expand({7, 1});
  const KvTensors tensors = {.k_cache = latent,
                             .v_cache = latent,
                             .kv_dtype = "fp8",
                             .rope_cache = rope,
                             .rope_cache_scale = scale};
  const KvLayer kv = *KvLayerOf(tensors);
  EXPECT_EQ(kv.head_dim_qk, 576);
  EXPECT_EQ(kv.head_dim_v, 512);
  EXPECT_EQ(kv.rope_dim, 64);
  EXPECT_EQ(kv.dtype, DType::kFp8E4M3);
  EXPECT_EQ(kv.rope_dtype, *FromScalarType(rope.scalar_type()));
  EXPECT_EQ(kv.rope.data, rope.data_ptr());
  EXPECT_EQ(kv.rope.Offset(1, 2, 0, 3), 1 * 640 + 2 * 80 + 3);
  EXPECT_EQ(kv.rope_scale.data, scale.const_data_ptr());

  KvTensors other = tensors;
  other.k_cache = other.v_cache = latent.transpose(1, 2);
  other.layout = "HND";
  other.rope_cache = rope.transpose(1, 2);
  EXPECT_EQ(KvLayerOf(other)->rope.Offset(1, 2, 0, 3), 1 * 640 + 2 * 80 + 3);
  other = tensors;
  other.rope_cache = at::zeros({4, 8, 1, 64}, at::kByte);
  EXPECT_EQ(KvLayerOf(other)->rope_dtype, DType::kFp8E4M3);

  const auto refusal = [&](const at::Tensor& wrong) {
    KvTensors with = tensors;
    with.rope_cache = wrong;
    return Refusal(with);
  };
  EXPECT_THAT(refusal(Cache({3, 8, 1, 64})), HasSubstr("rope_cache must be"));
  EXPECT_THAT(refusal(Cache({4, 8, 2, 64})), HasSubstr("rope_cache must be"));
  EXPECT_THAT(refusal(Cache({4, 8, 64})), HasSubstr("rope_cache must be"));
  EXPECT_THAT(refusal(rope.to(at::kInt)), HasSubstr("rope_cache has the wrong dtype"));
  other = tensors;
  other.rope_cache.reset();
  EXPECT_THAT(Refusal(other), HasSubstr("rope_cache_scale: expected none without rope_cache"));
}

TEST(KvTensorsTest, RejectsTensorsThatAreNotACache) {
  const at::Tensor good = Cache({4, 8, 2, 32});
  EXPECT_THAT(Refusal({.k_cache = good, .v_cache = Cache({4, 8, 3, 32})}),
              HasSubstr("v_cache must be"));
  EXPECT_THAT(Refusal({.k_cache = good, .v_cache = Cache({4, 8, 2, 32}, at::kFloat)}),
              HasSubstr("v_cache has the wrong dtype"));
  EXPECT_THAT(Refusal({.k_cache = Cache({4, 8, 64}), .v_cache = good}), HasSubstr("k_cache"));
  EXPECT_THAT(Refusal({.k_cache = good.transpose(2, 3), .v_cache = good.transpose(2, 3)}),
              HasSubstr("stride 1"));
  EXPECT_THAT(Refusal({.k_cache = good, .v_cache = good, .layout = "NDH"}), HasSubstr("NDH"));
  EXPECT_THAT(Refusal({.k_cache = good, .v_cache = good, .layout = "K-packed"}),
              HasSubstr("k_cache must be"));
}

}  // namespace
}  // namespace reprise
