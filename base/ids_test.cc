#include "reprise/base/ids.h"

#include <sstream>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(StrongIdTest, IdsOfDifferentKindsDoNotConvert) {
  static_assert(!std::is_convertible_v<BlockId, SlotId>);
  static_assert(!std::is_convertible_v<int, BlockId>);
  static_assert(!std::is_convertible_v<BlockId, int>);
  EXPECT_EQ(BlockId(7).value(), 7);
}

TEST(StrongIdTest, AnArrayOfIdsMayBeReadAsAnArrayOfIntegers) {
  static_assert(sizeof(BlockId) == sizeof(int32_t) && std::is_trivially_copyable_v<BlockId>);
  static_assert(sizeof(SequenceId) == sizeof(int64_t));
  EXPECT_EQ(BlockId(), kNullBlock);
}

TEST(StrongIdTest, ComparesHashesAndPrintsItsValue) {
  EXPECT_LT(SlotId(3), SlotId(4));
  absl::flat_hash_set<SlotId> slots = {SlotId(1), SlotId(2), SlotId(1)};
  EXPECT_EQ(slots.size(), 2);
  std::ostringstream out;
  out << SequenceId(int64_t{1} << 40);
  EXPECT_EQ(out.str(), "1099511627776");
}

}  // namespace
}  // namespace reprise
