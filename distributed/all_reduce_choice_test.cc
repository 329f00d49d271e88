#include "reprise/distributed/all_reduce_choice.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr AllReduceLimits kLimits = {.max_symmetric_bytes = 4 * kMiB,
                                     .max_push_bytes = 0,
                                     .max_one_shot_bytes = kMiB / 4,
                                     .min_copied_bytes = kMiB};

AllReduceCase Usual(int64_t bytes, bool in_buffer) {
  return {.bytes = bytes,
          .has_kernel = true,
          .in_buffer = in_buffer,
          .aligned = true,
          .limits = kLimits};
}

TEST(ChooseAllReduceTest, SmallSumsUseSymmetricMemory) {
  EXPECT_EQ(ChooseAllReduce(Usual(8192, true)), AllReduceWay::kTwoShot);
  EXPECT_EQ(ChooseAllReduce(Usual(4 * kMiB, true)), AllReduceWay::kTwoShot);
  EXPECT_EQ(ChooseAllReduce(Usual(16, false)), AllReduceWay::kOneShot);
  EXPECT_EQ(ChooseAllReduce(Usual(kMiB / 4, false)), AllReduceWay::kOneShot);
  EXPECT_EQ(ChooseAllReduce(Usual(kMiB / 4 + 16, false)), AllReduceWay::kNccl);
  EXPECT_EQ(ChooseAllReduce(Usual(kMiB - 16, false)), AllReduceWay::kNccl);
  EXPECT_EQ(ChooseAllReduce(Usual(kMiB, false)), AllReduceWay::kTwoShot);
  EXPECT_EQ(ChooseAllReduce(Usual(kMiB, true)), AllReduceWay::kTwoShot);
}

TEST(ChooseAllReduceTest, SmallSumsUsePushInAnyMemory) {
  for (bool in_buffer : {false, true}) {
    AllReduceCase sum = Usual(16, in_buffer);
    sum.limits.max_push_bytes = 4096;
    EXPECT_EQ(ChooseAllReduce(sum), AllReduceWay::kPush);
    sum.aligned = false;
    EXPECT_EQ(ChooseAllReduce(sum), AllReduceWay::kNccl);
    sum.aligned = true;
    sum.bytes = 4096;
    EXPECT_EQ(ChooseAllReduce(sum), AllReduceWay::kPush);
    sum.bytes = 4096 + 16;
    EXPECT_EQ(ChooseAllReduce(sum), in_buffer ? AllReduceWay::kTwoShot : AllReduceWay::kOneShot);
    sum.bytes = 24;
    EXPECT_EQ(ChooseAllReduce(sum), AllReduceWay::kNccl);
    sum.bytes = 16;
    sum.has_kernel = false;
    EXPECT_EQ(ChooseAllReduce(sum), AllReduceWay::kNccl);
  }
}

TEST(ChooseAllReduceTest, LargeSumsUseNccl) {
  for (bool in_buffer : {false, true}) {
    EXPECT_EQ(ChooseAllReduce(Usual(4 * kMiB + 16, in_buffer)), AllReduceWay::kNccl);
    AllReduceCase off = Usual(16, in_buffer);
    off.limits.max_symmetric_bytes = 0;
    EXPECT_EQ(ChooseAllReduce(off), AllReduceWay::kNccl);
  }
}

TEST(ChooseAllReduceTest, UnsupportedTensorsUseNccl) {
  for (bool in_buffer : {false, true}) {
    AllReduceCase other = Usual(8192, in_buffer);
    other.has_kernel = false;
    EXPECT_EQ(ChooseAllReduce(other), AllReduceWay::kNccl);
    other = Usual(8192, in_buffer);
    other.aligned = false;
    EXPECT_EQ(ChooseAllReduce(other), AllReduceWay::kNccl);
    EXPECT_EQ(ChooseAllReduce(Usual(8194, in_buffer)), AllReduceWay::kNccl);
  }
}

}  // namespace
}  // namespace reprise
