#include "cache/block_table_formats.h"

#include <algorithm>
#include <climits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kGarbage = -12345;  // what must be neither read nor left behind

struct Padded {
  std::vector<int32_t> entries;
  int64_t row_stride;
  int max_blocks;
  std::vector<int32_t> seq_lens;

  PaddedBlockTable view() const { return {entries, row_stride, max_blocks, seq_lens}; }
  MutablePaddedBlockTable mutable_view() {
    return {absl::MakeSpan(entries), row_stride, max_blocks, absl::MakeSpan(seq_lens)};
  }
};

struct Packed {
  std::vector<int32_t> block_indptr, block_indices, last_block_len;

  PackedBlockTable view() const { return {block_indptr, block_indices, last_block_len}; }
  MutablePackedBlockTable mutable_view() {
    return {absl::MakeSpan(block_indptr), absl::MakeSpan(block_indices),
            absl::MakeSpan(last_block_len)};
  }
};

Padded ExamplePadded() {
  const int32_t x = kGarbage;
  return {.entries = {7, 2, x, x, x, x, x, x, 5, 9, x},  // stride 4, the last row not padded to it
          .row_stride = 4,
          .max_blocks = 3,
          .seq_lens = {6, 0, 8}};
}

Packed ExamplePacked() {
  return {.block_indptr = {0, 2, 2, 4}, .block_indices = {7, 2, 5, 9}, .last_block_len = {2, 0, 4}};
}

Packed EmptyPacked(int num_rows, int num_indices) {
  return {.block_indptr = std::vector<int32_t>(num_rows + 1, kGarbage),
          .block_indices = std::vector<int32_t>(num_indices, kGarbage),
          .last_block_len = std::vector<int32_t>(num_rows, kGarbage)};
}

TEST(PackBlockTableTest, PacksTheExampleOfTheHeader) {
  Packed packed = EmptyPacked(3, 5);
  absl::StatusOr<int> num_indices =
      PackBlockTable(ExamplePadded().view(), 4, packed.mutable_view());
  ASSERT_TRUE(num_indices.ok()) << num_indices.status();
  EXPECT_EQ(*num_indices, 4);
  EXPECT_THAT(packed.block_indptr, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(packed.block_indices, ElementsAre(7, 2, 5, 9, kGarbage));
  EXPECT_THAT(packed.last_block_len,
              ElementsAre(2, 0, 4));  // 8 tokens fill the last block: 4, not 0
}

TEST(PackBlockTableTest, NoRowsArePacked) {
  Packed packed = EmptyPacked(0, 0);
  EXPECT_EQ(*PackBlockTable({}, 4, packed.mutable_view()), 0);
  EXPECT_THAT(packed.block_indptr, ElementsAre(0));
}

TEST(PackBlockTableTest, RefusesBadInputBeforeItWrites) {
  const auto message = [](const Padded& padded, int block_size, Packed packed) {
    absl::Status status = PackBlockTable(padded.view(), block_size, packed.mutable_view()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(packed.block_indptr, Each(kGarbage));
    EXPECT_THAT(packed.block_indices, Each(kGarbage));
    EXPECT_THAT(packed.last_block_len, Each(kGarbage));
    return std::string(status.message());
  };
  const Packed large = EmptyPacked(3, 9);
  EXPECT_THAT(message(ExamplePadded(), 0, large), HasSubstr("block_size must be positive"));
  EXPECT_THAT(message(ExamplePadded(), 4, EmptyPacked(2, 9)),
              HasSubstr("block_indptr is too small: expected at least 4, got 3"));
  EXPECT_THAT(message(ExamplePadded(), 4, EmptyPacked(3, 3)),
              HasSubstr("block_indices is too small: expected at least 4, got 3"));

  Padded bad = ExamplePadded();
  bad.seq_lens[2] = 13;  // 3 columns of 4 hold 12
  EXPECT_THAT(message(bad, 4, large),
              HasSubstr("seq_lens of row 2 must fit the table: expected 0 to 12, got 13"));
  bad.seq_lens[2] = -1;
  EXPECT_THAT(message(bad, 4, large), HasSubstr("got -1"));
  bad.seq_lens[2] = INT_MAX;
  EXPECT_THAT(message(bad, INT_MAX - 1, EmptyPacked(3, 2)),  // no overflow: 1 + 0 + 2 blocks
              HasSubstr("block_indices is too small: expected at least 3, got 2"));

  bad = ExamplePadded();
  bad.entries.pop_back();
  EXPECT_THAT(message(bad, 4, large), HasSubstr("expected 3 rows of stride 4, got 10 entries"));
  bad = ExamplePadded();
  bad.row_stride = 2;
  EXPECT_THAT(message(bad, 4, large), HasSubstr("row_stride must hold a row"));
  bad.row_stride = INT64_MAX;
  EXPECT_THAT(message(bad, 4, large), HasSubstr("entries must hold the table"));
}

TEST(UnpackBlockTableTest, UnpacksTheExampleAndClearsWhatIsPastEachRow) {
  Padded padded = ExamplePadded();
  std::fill(padded.entries.begin(), padded.entries.end(), kGarbage);
  padded.seq_lens = {kGarbage, kGarbage, kGarbage, kGarbage};  // longer than needed
  ASSERT_TRUE(UnpackBlockTable(ExamplePacked().view(), 4, padded.mutable_view()).ok());
  const int32_t x = kGarbage;  // between rows: not the table's
  EXPECT_THAT(padded.entries, ElementsAre(7, 2, 0, x, 0, 0, 0, x, 5, 9, 0));
  EXPECT_THAT(padded.seq_lens, ElementsAre(6, 0, 8, x));
}

TEST(UnpackBlockTableTest, RefusesBadInputBeforeItWrites) {
  const auto message = [](const Packed& packed, Padded padded) {
    const std::vector<int32_t> before = padded.entries;
    absl::Status status = UnpackBlockTable(packed.view(), 4, padded.mutable_view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(padded.entries, before);
    return std::string(status.message());
  };
  Packed bad = ExamplePacked();
  bad.last_block_len[0] = 5;
  EXPECT_THAT(message(bad, ExamplePadded()),
              HasSubstr("last_block_len of row 0 is out of range: expected 1 to 4, got 5"));
  bad.last_block_len[0] = 0;
  EXPECT_THAT(message(bad, ExamplePadded()), HasSubstr("expected 1 to 4, got 0"));
  bad = ExamplePacked();
  bad.last_block_len[1] = 1;
  EXPECT_THAT(message(bad, ExamplePadded()), HasSubstr("expected 0 for an empty row, got 1"));
  bad = ExamplePacked();
  bad.block_indptr[2] = 1;
  EXPECT_THAT(message(bad, ExamplePadded()),
              HasSubstr("block_indptr must not decrease: expected at least 2 after row 1, got 1"));
  bad = ExamplePacked();
  bad.block_indptr[0] = 1;
  EXPECT_THAT(message(bad, ExamplePadded()), HasSubstr("must start at 0: expected 0, got 1"));
  bad = ExamplePacked();
  bad.block_indptr.pop_back();
  EXPECT_THAT(message(bad, ExamplePadded()), HasSubstr("expected [4], got [3]"));
  bad = ExamplePacked();
  bad.block_indices.pop_back();
  EXPECT_THAT(message(bad, ExamplePadded()),
              HasSubstr("block_indices is too small: expected at least 4, got 3"));

  Padded narrow = ExamplePadded();
  narrow.max_blocks = 1;
  EXPECT_THAT(message(ExamplePacked(), narrow),
              HasSubstr("row 0 must fit the table: expected at most 1 blocks, got 2"));
  Padded few = ExamplePadded();
  few.seq_lens.pop_back();
  EXPECT_THAT(message(ExamplePacked(), few), HasSubstr("seq_lens is too small"));
  few = ExamplePadded();
  few.entries.resize(10);
  EXPECT_THAT(message(ExamplePacked(), few), HasSubstr("entries must hold the table"));
}

TEST(BlockTableFormatsTest, RandomTablesComeBackAsTheyWere) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 500; ++i) {
    const int num_rows = below(7), max_blocks = 1 + below(9), block_size = 1 + below(20);
    const int row_stride = max_blocks + below(3);
    Padded padded = {.entries = std::vector<int32_t>(num_rows * row_stride, kGarbage),
                     .row_stride = row_stride,
                     .max_blocks = max_blocks,
                     .seq_lens = std::vector<int32_t>(num_rows)};
    for (int row = 0; row < num_rows; ++row) {
      padded.seq_lens[row] = below(3) == 0 ? 0 : below(max_blocks * block_size + 1);
      const int num_blocks = (padded.seq_lens[row] + block_size - 1) / block_size;
      for (int column = 0; column < num_blocks; ++column) {
        padded.entries[row * row_stride + column] = below(1000);
      }
    }
    Packed packed = EmptyPacked(num_rows, num_rows * max_blocks);
    ASSERT_TRUE(PackBlockTable(padded.view(), block_size, packed.mutable_view()).ok());

    Padded back = padded;
    std::fill(back.entries.begin(), back.entries.end(), kGarbage);
    std::fill(back.seq_lens.begin(), back.seq_lens.end(), kGarbage);
    ASSERT_TRUE(UnpackBlockTable(packed.view(), block_size, back.mutable_view()).ok());
    EXPECT_EQ(back.seq_lens, padded.seq_lens);
    for (int row = 0; row < num_rows; ++row) {
      for (int column = 0; column < max_blocks; ++column) {
        const int32_t expected = padded.entries[row * row_stride + column];
        ASSERT_EQ(back.entries[row * row_stride + column], expected == kGarbage ? 0 : expected);
      }
    }
  }
}

}  // namespace
}  // namespace reprise
