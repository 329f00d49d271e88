#include "reprise/runner/ops/choices/remembered_choice.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

RememberedChoice Algorithm() {
  return {.algorithm = {0, 1, 0x1f, std::numeric_limits<uint64_t>::max(), 4, 5, 6, 0xabc}};
}

TEST(RememberedChoice, SurvivesARoundTripThroughText) {
  RememberedChoice choice = Algorithm();
  EXPECT_EQ(RememberedChoiceFrom(ToText(choice)), choice);
  for (int strip = 1; strip <= 3; ++strip) {
    choice.skinny_strip = strip;
    EXPECT_EQ(RememberedChoiceFrom(ToText(choice)), choice);
  }
  choice.skinny_strip = 0;
  for (const int num_rows : {16, 64}) {
    for (const TileForm& form : TileFormsToTry(num_rows)) {
      choice.tile_form = form;
      EXPECT_EQ(RememberedChoiceFrom(ToText(choice)), choice);
    }
  }
  EXPECT_EQ(ToText(choice).find_first_of("\t\n"), std::string::npos);
}

TEST(RememberedChoice, RejectsOtherTexts) {
  const std::string words = ToText(Algorithm()).substr(std::string("library 0 0 0 0 0").size());
  ASSERT_TRUE(RememberedChoiceFrom("library 0 0 0 0 0" + words).has_value());
  ASSERT_TRUE(RememberedChoiceFrom("strip 3 0 0 0 0" + words).has_value());
  ASSERT_TRUE(RememberedChoiceFrom("tiles 2 1 4 1 0" + words).has_value());
  for (const std::string start :
       {"", "library", "library 0 0 0 0", "library 0 0 0 0 1", "library 0 0 0 0 00",
        "other 0 0 0 0 0", "strip 0 0 0 0 0", "strip 4 0 0 0 0", "strip -1 0 0 0 0",
        "strip 1 0 0 0 7", "tiles 3 1 4 1 0", "tiles 2 2 4 1 0", "tiles 2 1 4 3 0",
        "tiles 2 1 4 x 0", "tiles 2 1 4 1 1", " library 0 0 0 0 0"}) {
    EXPECT_EQ(RememberedChoiceFrom(start + words), std::nullopt) << start;
  }
  EXPECT_EQ(RememberedChoiceFrom("library 0 0 0 0 0" + words + " 0"), std::nullopt);
  EXPECT_EQ(RememberedChoiceFrom("library 0 0 0 0 0" + words + "0"), std::nullopt);
  EXPECT_EQ(RememberedChoiceFrom("library 0 0 0 0 0" + words.substr(0, words.size() - 1)),
            std::nullopt);
}

}  // namespace
}  // namespace reprise
