#include "examples/llama/loading_bar.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(LoadingBarTest, SaysHowMuchOfHowMuchAndHowFast) {
  EXPECT_EQ(LoadingBar(8'030'000'000, 16'060'000'000, 2),
            "loading weights [##########..........] 8.0 of 16.1 GB, 4.0 GB/s");
}

TEST(LoadingBarTest, BeginsEmptyWithoutASpeedAndEndsFull) {
  EXPECT_EQ(LoadingBar(0, 1'000'000'000, 0),
            "loading weights [....................] 0.0 of 1.0 GB");
  EXPECT_EQ(LoadingBar(1'000'000'000, 1'000'000'000, 0.01),
            "loading weights [####################] 1.0 of 1.0 GB");
}

TEST(LoadingBarTest, NothingToReadIsDone) {
  EXPECT_EQ(LoadingBar(0, 0, 1), "loading weights [####################] 0.0 of 0.0 GB, 0.0 GB/s");
}

}  // namespace
}  // namespace reprise
