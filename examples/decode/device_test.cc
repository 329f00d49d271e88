#include "examples/decode/device.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::HasSubstr;

const c10::Device kCpu(c10::kCPU);
const c10::Device kGpu(c10::kCUDA, 0);

TEST(DeviceChoiceTest, AutoTakesAGpuIfThereIsOne) {
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kAuto, 0), kCpu);
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kAuto, 1), kGpu);
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kAuto, 8), kGpu);
}

TEST(DeviceChoiceTest, WhatIsAskedForIsTaken) {
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kCpu, 4), kCpu);
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kCuda, 4), kGpu);
}

TEST(DeviceChoiceTest, AGpuThatIsNotThereIsSaidSo) {
  EXPECT_THAT(std::string(ChooseDevice(DeviceChoice::kCuda, 0).status().message()),
              HasSubstr("finds no GPU"));
}

TEST(DeviceChoiceTest, EachRankTakesTheGpuOfItsIndex) {
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kAuto, 4, 3), c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kCpu, 4, 7), kCpu);
  EXPECT_EQ(*ChooseDevice(DeviceChoice::kAuto, 0, 7), kCpu);
  EXPECT_THAT(std::string(ChooseDevice(DeviceChoice::kAuto, 2, 2).status().message()),
              HasSubstr("expected one for rank 2, but LibTorch finds 2"));
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(CpuThreadsTest, ASmallModelIsWorthOne) {
  EXPECT_EQ(SensibleCpuThreads(0, 64), 1);
  EXPECT_EQ(SensibleCpuThreads(13 * kMiB, 64), 1);
}

TEST(CpuThreadsTest, ThreadsGrowWithTheWeightsUpToThoseThereAre) {
  EXPECT_EQ(SensibleCpuThreads(64 * kMiB, 64), 4);
  EXPECT_EQ(SensibleCpuThreads(64 * kMiB, 2), 2);
  EXPECT_EQ(SensibleCpuThreads(16 * 1024 * kMiB, 64), 64);
}

TEST(CpuThreadsTest, ThereIsAlwaysOne) { EXPECT_EQ(SensibleCpuThreads(1024 * kMiB, 0), 1); }

}  // namespace
}  // namespace reprise
