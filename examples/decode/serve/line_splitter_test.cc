#include "examples/decode/serve/line_splitter.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// "1:text", or "1!" for a line that is too long.
std::vector<std::string> LinesOf(const std::vector<std::string>& pieces, size_t max_bytes = 8) {
  std::vector<std::string> lines;
  const auto take = [&](const InputLine& line) {
    lines.push_back(line.text.has_value() ? absl::StrCat(line.number, ":", std::string(*line.text))
                                          : absl::StrCat(line.number, "!"));
  };
  LineSplitter splitter(max_bytes);
  for (const std::string& piece : pieces) splitter.Push(piece, take);
  splitter.Finish(take);
  return lines;
}

TEST(LineSplitterTest, LinesAreWholeWhereverTheBytesWereCut) {
  const std::string text = "one\n\ntwo\nthree";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_THAT(LinesOf({text.substr(0, cut), text.substr(cut)}),
                ElementsAre("1:one", "2:", "3:two", "4:three"))
        << cut;
  }
  EXPECT_THAT(LinesOf({}), IsEmpty());
  EXPECT_THAT(LinesOf({"one\n"}), ElementsAre("1:one"));
}

TEST(LineSplitterTest, ALineThatIsTooLongIsReportedOnceAndTheNextIsWhole) {
  EXPECT_THAT(LinesOf({"12345678\n", "123456789\n", "ok\n"}),
              ElementsAre("1:12345678", "2!", "3:ok"));
  EXPECT_THAT(LinesOf({"1234", "5678", "9", "0", "1234567890", "\nok"}), ElementsAre("1!", "2:ok"));
  EXPECT_THAT(LinesOf({"123456789"}), ElementsAre("1!"));
}

TEST(LineSplitterTest, BytesAreKeptAsTheyAre) {
  const std::string bytes("\0\xff\r", 3);
  EXPECT_THAT(LinesOf({bytes + "\n"}), ElementsAre("1:" + bytes));
}

}  // namespace
}  // namespace reprise
