#include "reprise/attention/cuda/kernel_key.h"

#include <array>
#include <cstdint>

#include "gtest/gtest.h"

namespace reprise {
namespace {

alignas(16) std::array<uint8_t, 1024> memory;

AttentionParams Layer(int head_dim_qk = 128, int head_dim_v = 128) {
  return {
      .num_q_heads = 8, .num_kv_heads = 2, .head_dim_qk = head_dim_qk, .head_dim_v = head_dim_v};
}

KvView ViewOf(void* data, int head_dim) {
  return {.data = data,
          .block_stride = 32 * int64_t{head_dim},
          .token_stride = 2 * int64_t{head_dim},
          .head_stride = head_dim,
          .dim_chunk = head_dim};
}

// A cache with two KV heads and blocks of 16 tokens.
KvLayer Kv(int head_dim = 128, DType dtype = DType::kBFloat16) {
  return {.k = ViewOf(memory.data(), head_dim),
          .v = ViewOf(memory.data() + 512, head_dim),
          .dtype = dtype,
          .num_blocks = 4,
          .block_size = 16,
          .num_kv_heads = 2,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim};
}

KvLoading LoadingOf(const KvLayer& kv, const AttentionParams& layer = Layer(),
                    const CallForm& form = {}, const KernelChoice& kernels = {}) {
  return KernelKeyOf(layer, kv, form, kernels).loading;
}

TEST(KernelKeyTest, ViewsOfWholeChunksAreReadInChunks) {
  KvView view = ViewOf(memory.data(), 128);
  EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kChunks);
  EXPECT_EQ(AccessOf(view, 100, DType::kBFloat16), KvAccess::kElements);  // 12.5 chunks
  view.data = memory.data() + 8;
  EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kElements);
  for (int64_t KvView::*stride :
       {&KvView::block_stride, &KvView::token_stride, &KvView::head_stride}) {
    view = ViewOf(memory.data(), 128);
    view.*stride += 4;
    EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kElements);
    EXPECT_EQ(AccessOf(view, 128, DType::kFloat32), KvAccess::kChunks);  // 4 elements per chunk
  }
  // The K-packed layout: K in chunks of 8 dims, V with contiguous tokens per dim.
  view = ViewOf(memory.data(), 128);
  view.dim_chunk = 8;
  view.dim_chunk_stride = 16 * 8;
  EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kChunks);
  view.dim_chunk_stride = 16 * 8 + 1;
  EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kElements);
  view.token_stride = 1;
  EXPECT_EQ(AccessOf(view, 128, DType::kBFloat16), KvAccess::kTokens);
}

TEST(KernelKeyTest, LoadingIsDirectUnlessSomethingNeedsAConversion) {
  EXPECT_EQ(LoadingOf(Kv()), KvLoading::kDirect);
  EXPECT_EQ(LoadingOf(Kv(128, DType::kFp8E4M3)), KvLoading::kFp8);
  EXPECT_EQ(LoadingOf(Kv(128, DType::kFloat16)), KvLoading::kConverted);  // q is bfloat16
  EXPECT_EQ(LoadingOf(Kv(), Layer(), {}, {.products = DType::kFloat32}), KvLoading::kConverted);
  EXPECT_EQ(LoadingOf(Kv(), Layer(), {}, {.products = DType::kBFloat16}), KvLoading::kDirect);
  EXPECT_EQ(LoadingOf(Kv(), Layer(), {.has_new_keys = true}), KvLoading::kConverted);
  EXPECT_EQ(LoadingOf(Kv(), Layer(), {.has_custom_mask = true}), KvLoading::kDirect);
  AttentionParams rotary = Layer();
  rotary.rotary.emplace();
  EXPECT_EQ(LoadingOf(Kv(), rotary), KvLoading::kConverted);
  KvLayer kv = Kv();
  kv.v.data = memory.data() + 514;
  EXPECT_EQ(LoadingOf(kv), KvLoading::kConverted);
  kv = Kv();
  kv.rope_dim = 64;
  EXPECT_EQ(LoadingOf(kv), KvLoading::kConverted);
}

TEST(KernelKeyTest, FindsVInKIfMemoryAndStridesAreEqual) {
  const auto values_of = [](const KvLayer& kv) { return KernelKeyOf(Layer(), kv, {}, {}).values; };
  EXPECT_EQ(values_of(Kv()), ValueSource::kOwn);
  KvLayer kv = Kv();
  kv.v = kv.k;
  EXPECT_EQ(values_of(kv), ValueSource::kKeyTile);
  kv.v.head_stride *= 2;
  EXPECT_EQ(values_of(kv), ValueSource::kOwn);
  kv.num_kv_heads = 1;  // head_stride is then unused
  EXPECT_EQ(values_of(kv), ValueSource::kKeyTile);
  kv.v.token_stride *= 2;
  EXPECT_EQ(values_of(kv), ValueSource::kOwn);
  kv = Kv();
  kv.v = kv.k;
  kv.head_dim_v = kv.head_dim_qk + 8;
  EXPECT_EQ(values_of(kv), ValueSource::kOwn);
}

TEST(KernelKeyTest, TypesAndHeadDimsComeFromTheCallAndTheLayer) {
  AttentionParams layer = Layer(64, 48);
  const AttentionKernelKey key =
      KernelKeyOf(layer, Kv(64, DType::kFp8E5M2), {.q_dtype = DType::kFloat16},
                  {.products = DType::kFloat16, .max_tier = 1});
  EXPECT_EQ(key.q_dtype, DType::kFloat16);
  EXPECT_EQ(key.kv_dtype, DType::kFp8E5M2);
  EXPECT_EQ(key.head_dim_qk, 64);
  EXPECT_EQ(key.head_dim_v, 48);
  EXPECT_EQ(key.products, DType::kFloat16);
  EXPECT_EQ(key.max_tier, 1);
  EXPECT_FALSE(key.is_general);
  EXPECT_FALSE(key.has_rotary);
  EXPECT_FALSE(key.rope_dtype.has_value());
}

TEST(KernelKeyTest, CallsForGeneralKernelsAreRecognised) {
  EXPECT_FALSE(NeedsGeneralKernels(KernelKeyOf(Layer(), Kv(), {}, {})));
  EXPECT_TRUE(NeedsGeneralKernels(KernelKeyOf(Layer(), Kv(), {.has_custom_mask = true}, {})));
  EXPECT_TRUE(NeedsGeneralKernels(KernelKeyOf(Layer(), Kv(), {.has_new_keys = true}, {})));
  EXPECT_EQ(KernelsFor(Layer(), {}).max_tier, 2);
  EXPECT_EQ(KernelsFor(Layer(), {.max_tier = 1}).max_tier, 1);
  const float scales[] = {1, 1};
  const auto expect_general = [&](const AttentionParams& layer) {
    EXPECT_TRUE(NeedsGeneralKernels(KernelKeyOf(layer, Kv(), {}, {})));
    const KernelChoice kernels = KernelsFor(layer, {.products = DType::kFloat32});
    EXPECT_EQ(kernels.max_tier, 1);
    EXPECT_EQ(kernels.products, DType::kFloat32);
  };
  AttentionParams layer = Layer();
  layer.rotary.emplace();
  expect_general(layer);
  layer = Layer();
  layer.q_head_scales = scales;
  expect_general(layer);
  layer = Layer();
  layer.alibi_slopes = scales;
  EXPECT_FALSE(NeedsGeneralKernels(KernelKeyOf(layer, Kv(), {}, {})));
  layer.alibi_row_stride = 2;
  expect_general(layer);
}

}  // namespace
}  // namespace reprise
