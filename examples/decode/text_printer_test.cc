#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "examples/decode/transcripts.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(TextPrinterTest, OneTextIsPrintedAsItComesWithoutAHeading) {
  std::ostringstream out;
  TextPrinter printer(out, {"prompt"});
  printer.Append(0, "so");
  EXPECT_EQ(out.str(), "so");
  printer.Append(0, "on");
  EXPECT_EQ(out.str(), "soon");
  printer.Finish(0);
  EXPECT_EQ(out.str(), "soon\n");
}

TEST(TextPrinterTest, LaterTextsWaitForTheFirst) {
  std::ostringstream out;
  TextPrinter printer(out, {"a", "b", "c"});
  EXPECT_EQ(out.str(), "");
  printer.Append(1, "two");
  EXPECT_EQ(out.str(), "--- a\n");
  printer.Append(0, "one");
  printer.Append(2, "three");
  printer.Finish(2);
  EXPECT_EQ(out.str(), "--- a\none");
  printer.Finish(0);
  EXPECT_EQ(out.str(), "--- a\none\n--- b\ntwo");
  printer.Append(1, "!");
  printer.Finish(1);
  EXPECT_EQ(out.str(), "--- a\none\n--- b\ntwo!\n--- c\nthree\n");
}

TEST(TextPrinterTest, TextsWithoutAnythingAreTextsToo) {
  std::ostringstream out;
  TextPrinter printer(out, {"a", "b"});
  printer.Finish(1);
  printer.Finish(0);
  EXPECT_EQ(out.str(), "--- a\n\n--- b\n\n");
}

TEST(TextPrinterTest, WithoutPromptsNothingIsPrinted) {
  std::ostringstream out;
  TextPrinter printer(out, {});
  EXPECT_EQ(out.str(), "");
}

TEST(TextPrinterTest, WhateverTheOrderTheOutputIsTheSame) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    std::ostringstream out;
    TextPrinter printer(out, {"p0", "p1", "p2", "p3"});
    std::vector<int> alive = {0, 1, 2, 3};
    std::map<int, int> pieces;
    while (!alive.empty()) {
      const size_t at = rng() % alive.size();
      const int prompt = alive[at];
      if (pieces[prompt] == prompt + 1) {
        printer.Finish(prompt);
        alive.erase(alive.begin() + static_cast<int64_t>(at));
      } else {
        printer.Append(prompt, std::string(1, static_cast<char>('a' + pieces[prompt]++)));
      }
    }
    EXPECT_EQ(out.str(), "--- p0\na\n--- p1\nab\n--- p2\nabc\n--- p3\nabcd\n");
  }
}

}  // namespace
}  // namespace reprise
