#include "tests/benchmarks/device/kernel_class.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(KernelClassTest, KnowsOurKernelsBeforeTheLibrarys) {
  EXPECT_EQ(ClassOfKernel("void reprise::AttentionKernel<reprise::TileTraits<...>>(...)"),
            KernelClass::kAttention);
  EXPECT_EQ(ClassOfKernel("reprise::(anonymous namespace)::BuildTileScheduleKernel(...)"),
            KernelClass::kTileSchedule);
  EXPECT_EQ(ClassOfKernel("void reprise::(anonymous namespace)::SkinnyLinearKernel<__half, ...>"),
            KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("void reprise::(anonymous namespace)::TileLinearKernel<__half, ...>"),
            KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("void reprise::(anonymous namespace)::Fp8LinearKernel<__half, ...>"),
            KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("void reprise::(anonymous namespace)::DequantiseKernel<__half, ...>"),
            KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("nvjet_tst_128x64_64x10_2x1_v_bz_TNN"), KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("void gemvNSP_kernel<__nv_bfloat16, ...>"), KernelClass::kProducts);
  EXPECT_EQ(ClassOfKernel("void cublasLt::splitKreduce_kernel<32, 16, int, ...>"),
            KernelClass::kProducts);
}

TEST(KernelClassTest, KnowsTheLibrarysCollectives) {
  EXPECT_EQ(ClassOfKernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            KernelClass::kCollectives);
  EXPECT_EQ(ClassOfKernel("void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<...>"),
            KernelClass::kCollectives);
}

TEST(KernelClassTest, WhatIsUnknownIsOther) {
  EXPECT_EQ(ClassOfKernel("void at::native::vectorized_elementwise_kernel<4>"),
            KernelClass::kOther);
  EXPECT_EQ(ClassOfKernel(""), KernelClass::kOther);
}

TEST(KernelClassTest, EveryClassHasANameOfItsOwn) {
  for (int a = 0; a < kNumKernelClasses; ++a) {
    EXPECT_NE(KernelClassName(static_cast<KernelClass>(a)), "unknown");
    for (int b = 0; b < a; ++b) {
      EXPECT_NE(KernelClassName(static_cast<KernelClass>(a)),
                KernelClassName(static_cast<KernelClass>(b)));
    }
  }
}

}  // namespace
}  // namespace reprise
