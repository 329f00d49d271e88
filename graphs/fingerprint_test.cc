#include "reprise/graphs/fingerprint.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const void* Address(uintptr_t value) { return reinterpret_cast<const void*>(value); }

Fingerprint Of(std::vector<std::pair<std::string, int64_t>> values) {
  Fingerprint fingerprint;
  for (const auto& [name, value] : values) fingerprint.AddValue(name, value);
  return fingerprint;
}

void ExpectRefused(const Fingerprint& captured, const Fingerprint& current,
                   const std::string& difference) {
  const absl::Status status = CompareFingerprints(captured, current);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), EndsWith(difference));
  EXPECT_THAT(std::string(status.message()), HasSubstr("graph fingerprint must match the capture"));
}

TEST(FingerprintTest, EqualListsMatch) {
  EXPECT_TRUE(CompareFingerprints({}, {}).ok());
  EXPECT_TRUE(CompareFingerprints(Of({{"a", 1}, {"b", 2}}), Of({{"a", 1}, {"b", 2}})).ok());
}

TEST(FingerprintTest, NamesTheValueThatChanged) {
  ExpectRefused(Of({{"max_seq_len", 8192}, {"max_rows", 16}}),
                Of({{"max_seq_len", 4096}, {"max_rows", 32}}),
                "max_seq_len: expected 8192, got 4096");
}

TEST(FingerprintTest, NamesTheAddressThatChangedInHexadecimal) {
  Fingerprint captured, current;
  captured.AddAddress("block_table", Address(0x7f0000000400));
  current.AddAddress("block_table", Address(0xffff000000001000));
  ExpectRefused(captured, current, "block_table: expected 0x7f0000000400, got 0xffff000000001000");
}

TEST(FingerprintTest, NamesTheEntryThatIsMissingOrNew) {
  const Fingerprint two = Of({{"a", 1}, {"b", 2}});
  ExpectRefused(two, Of({{"a", 1}}), "expected b, got the end of the list");
  ExpectRefused(Of({{"a", 1}}), two, "expected the end of the list, got b");
  ExpectRefused({}, two, "expected the end of the list, got a");
  ExpectRefused(two, {}, "expected a, got the end of the list");
}

TEST(FingerprintTest, ComparisonDependsOnTheOrder) {
  ExpectRefused(Of({{"a", 1}, {"b", 1}}), Of({{"b", 1}, {"a", 1}}), "entry 0: expected a, got b");
}

TEST(FingerprintTest, AddressDiffersFromAnEqualValue) {
  Fingerprint value, address;
  value.AddValue("x", 16);
  address.AddAddress("x", Address(16));
  ExpectRefused(value, address, "x: expected 16, got 0x10");
}

TEST(FingerprintTest, NameBoundariesCount) {
  ExpectRefused(Of({{"ab", 0}, {"c", 0}}), Of({{"a", 0}, {"bc", 0}}), "expected ab, got a");
  // A shorter name padded with zero bytes is a different name.
  ExpectRefused(Of({{"a", 1}}), Of({{std::string("a\0", 2), 1}}), std::string("got a\0", 6));
}

TEST(FingerprintTest, ExtremeValuesPrintAndCompare) {
  const int64_t min = std::numeric_limits<int64_t>::min();
  const int64_t max = std::numeric_limits<int64_t>::max();
  ExpectRefused(Of({{"x", min}}), Of({{"x", max}}),
                "expected -9223372036854775808, got 9223372036854775807");
  Fingerprint null;
  null.AddAddress("x", nullptr);
  EXPECT_EQ(null.ToString(), "x = 0x0\n");
  EXPECT_NE(null, Fingerprint());
}

TEST(FingerprintTest, PrintsOneLinePerEntry) {
  Fingerprint fingerprint;
  fingerprint.AddValue("max_rows", -3);
  fingerprint.AddAddress("lse", Address(0x1000));
  EXPECT_EQ(fingerprint.ToString(), "max_rows = -3\nlse = 0x1000\n");
}

TEST(FingerprintTest, CopiesAreIndependent) {
  Fingerprint a = Of({{"a", 1}});
  Fingerprint b = a;
  b.AddValue("b", 2);
  EXPECT_NE(a, b);
  EXPECT_EQ(a.ToString(), "a = 1\n");
  b = a;  // onto a longer fingerprint
  EXPECT_EQ(b.ToString(), "a = 1\n");
  EXPECT_TRUE(CompareFingerprints(a, b).ok());
  const Fingerprint c = std::move(b);
  EXPECT_EQ(c, a);
  b.Clear();
  b.AddValue("a", 1);  // a moved-from fingerprint is usable after Clear()
  EXPECT_EQ(b, a);
  Fingerprint& self = a;
  a = self;
  EXPECT_EQ(a.ToString(), "a = 1\n");
}

TEST(FingerprintTest, ClearRemovesAllEntries) {
  Fingerprint fingerprint = Of({{"a", 1}, {"b", 2}});
  fingerprint.Clear();
  EXPECT_EQ(fingerprint.size(), 0);
  EXPECT_EQ(fingerprint, Fingerprint());
  EXPECT_EQ(fingerprint.ToString(), "");
  fingerprint.AddValue("c", 3);
  EXPECT_EQ(fingerprint, Of({{"c", 3}}));
}

TEST(FingerprintTest, RefillingAndComparingDoNotAllocate) {
  const auto fill = [](Fingerprint& fingerprint) {
    fingerprint.Clear();
    for (int i = 0; i < 50; ++i) {
      fingerprint.AddValue("a name that is too long for a string's own buffer", i);
      fingerprint.AddAddress("short", Address(i));
    }
  };
  Fingerprint captured, current;
  fill(captured);
  fill(current);

  AllocationCounter allocations;
  fill(current);
  const bool same = CompareFingerprints(captured, current).ok();
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(same);
}

// The hash does not depend on the process, so reports of two runs can be compared.
TEST(FingerprintTest, HashIsTheSameInEveryProcess) {
  EXPECT_EQ(Fingerprint().hash(), 0u);
  EXPECT_EQ(Of({{"max_seq_len", 8192}, {"max_rows", 16}}).hash(), 0x2a8bb76e30e55775u);
}

TEST(FingerprintTest, AnySingleChangeIsFoundAndNamed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const int size = 1 + static_cast<int>(random() % 40);
    std::vector<std::pair<std::string, int64_t>> values;
    for (int i = 0; i < size; ++i) {
      values.emplace_back(absl::StrCat("constant_", i), static_cast<int64_t>(random()));
    }
    auto changed = values;
    auto& [name, value] = changed[random() % size];
    value ^= int64_t{1} << (random() % 63);
    const absl::Status status = CompareFingerprints(Of(values), Of(changed));
    ASSERT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(" ", name, ": expected ")));
  }
}

}  // namespace
}  // namespace reprise
