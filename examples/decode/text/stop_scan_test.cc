#include "examples/decode/text/stop_scan.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace reprise {
namespace {

// Whether the last byte completes the stop.
bool Push(StopScan& scan, std::string_view bytes, StopByte kind = StopByte::kVisible) {
  bool is_complete = false;
  for (const char byte : bytes) is_complete = scan.Push(byte, kind);
  return is_complete;
}

TEST(StopScanTest, HoldsTheLongestBeginningOfTheStop) {
  StopScan scan("aab");
  EXPECT_FALSE(Push(scan, "xa"));
  EXPECT_EQ(scan.num_held(), 1u);
  EXPECT_FALSE(Push(scan, "a"));
  EXPECT_EQ(scan.num_held(), 2u);
  EXPECT_FALSE(Push(scan, "a"));  // "aaa" ends with "aa"
  EXPECT_EQ(scan.num_held(), 2u);
  EXPECT_TRUE(Push(scan, "b"));
  EXPECT_EQ(scan.num_held(), 3u);
}

TEST(StopScanTest, HiddenBytesAreMatchedButNotHeld) {
  StopScan scan("a<x>b");
  Push(scan, "a");
  EXPECT_FALSE(scan.has_hidden());
  Push(scan, "<x>", StopByte::kHidden);
  EXPECT_TRUE(scan.has_hidden());
  EXPECT_EQ(scan.num_held(), 1u);
  EXPECT_TRUE(Push(scan, "b"));
  EXPECT_EQ(scan.num_held(), 2u);
  StopScan failed("a<x>b");
  Push(failed, "a");
  Push(failed, "<x>", StopByte::kHidden);
  Push(failed, "a");
  EXPECT_FALSE(failed.has_hidden());
  EXPECT_EQ(failed.num_held(), 1u);
}

TEST(StopScanTest, ACopyContinuesOnItsOwn) {
  StopScan scan("ab");
  Push(scan, "a");
  StopScan copy = scan;
  EXPECT_TRUE(Push(copy, "b"));
  EXPECT_FALSE(Push(scan, "c"));
  EXPECT_EQ(scan.num_held(), 0u);
}

TEST(StopScanTest, RandomTextsMatchTheDefinition) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string stop(1 + random() % 6, ' ');
    for (char& c : stop) c = "ab"[random() % 2];
    StopScan scan(stop);
    std::string text;
    while (text.size() < 30) {
      text += "ab"[random() % 2];
      const bool is_complete = scan.Push(text.back());
      ASSERT_EQ(is_complete, text.find(stop) != std::string::npos) << stop << " in " << text;
      size_t held = std::min(text.size(), stop.size());
      while (text.substr(text.size() - held) != stop.substr(0, held)) --held;
      ASSERT_EQ(scan.num_held(), held) << stop << " in " << text;
      if (is_complete) break;
    }
  }
}

TEST(StopScanTest, LongStopsTakeLinearTime) {
  StopScan scan(std::string(1'000'000, 'a') + "b");
  for (int i = 0; i < 4'000'000; ++i) ASSERT_FALSE(scan.Push('a'));
  EXPECT_EQ(scan.num_held(), 1'000'000u);
  EXPECT_TRUE(scan.Push('b'));
  StopScan hidden(std::string(100'000, 'a') + "b");
  for (int i = 0; i < 200'000; ++i) ASSERT_FALSE(hidden.Push('a', StopByte::kHidden));
  EXPECT_TRUE(hidden.has_hidden());
}

}  // namespace
}  // namespace reprise
