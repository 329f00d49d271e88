#include "reprise/hf/bounded_list.h"

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(BoundedListTest, NamesEverythingThatFits) {
  EXPECT_EQ(BoundedList({}, 20), "");
  EXPECT_EQ(BoundedList({"one"}, 20), "one");
  EXPECT_EQ(BoundedList({"one", "two", "three", "four"}, 21), "one, two, three, four");
}

TEST(BoundedListTest, CountsTheNamesThatDoNotFit) {
  EXPECT_EQ(BoundedList({"one", "two", "three", "four"}, 20), "one and 3 more");
  EXPECT_EQ(BoundedList({"q_proj", "k_proj", "v_proj", "o_proj"}, 29), "q_proj, k_proj and 2 more");
}

TEST(BoundedListTest, CutsTheFirstName) {
  const std::string name(50, 'x');
  EXPECT_EQ(BoundedList({name}, 20), std::string(17, 'x') + "...");
  EXPECT_EQ(BoundedList({name, "two"}, 20), "xx... and 1 more");
}

TEST(BoundedListTest, NeverExceedsTheLimit) {
  std::vector<std::string_view> names;
  for (int i = 0; i < 100; ++i) {
    names.push_back("names");
    for (size_t limit = 20; limit < 200; ++limit) {
      EXPECT_LE(BoundedList(names, limit).size(), limit);
    }
  }
}

}  // namespace
}  // namespace reprise
