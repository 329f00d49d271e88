#include "reprise/cache/tables/convert_tables.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/testing/conversion_cases.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kGarbage = -12345;  // must not be read, and must not remain in an output

// A padded table with its lengths.
struct Padded {
  std::vector<int32_t> entries;
  int row_stride = 0;
  int max_blocks = 0;
  int block_size = 0;
  std::vector<int32_t> seq_lens;

  int num_rows() const { return static_cast<int>(seq_lens.size()); }
  MutableBlockTableView view() {
    return {.entries = entries.data(),
            .row_stride = row_stride,
            .num_tables = num_rows(),
            .max_blocks = max_blocks,
            .block_size = block_size};
  }
};

struct Packed {
  std::vector<int32_t> block_indptr, block_indices, last_block_len;
  int block_size = 0;

  MutablePackedBlockTable view() {
    return {.block_indptr = block_indptr.data(),
            .block_indices = block_indices.data(),
            .last_block_len = last_block_len.data(),
            .num_rows = static_cast<int>(last_block_len.size()),
            .max_indices = static_cast<int>(block_indices.size()),
            .block_size = block_size};
  }
};

// Outputs filled with garbage.
Padded EmptyPadded(int num_rows, int row_stride, int max_blocks, int block_size) {
  return {.entries = std::vector<int32_t>(num_rows * row_stride + 1, kGarbage),
          .row_stride = row_stride,
          .max_blocks = max_blocks,
          .block_size = block_size,
          .seq_lens = std::vector<int32_t>(num_rows, kGarbage)};
}
Packed EmptyPacked(int num_rows, int num_indices, int block_size) {
  return {.block_indptr = std::vector<int32_t>(num_rows + 1, kGarbage),
          .block_indices = std::vector<int32_t>(num_indices + 1, kGarbage),
          .last_block_len = std::vector<int32_t>(num_rows, kGarbage),
          .block_size = block_size};
}

ConvertTablesArgs FromPadded(Padded& from) {
  return {.table = from.view(), .seq_lens = from.seq_lens.data(), .num_rows = from.num_rows()};
}
ConvertTablesArgs FromPacked(Packed& from) {
  return {.packed = from.view(), .num_rows = from.view().num_rows};
}
ConvertTablesArgs To(ConvertTablesArgs args, Padded& to) {
  args.out.table = to.view();
  args.out.seq_lens = to.seq_lens.data();
  return args;
}
ConvertTablesArgs To(ConvertTablesArgs args, Packed& to) {
  args.out.packed = to.view();
  --args.out.packed.max_indices;  // the last element must stay garbage
  return args;
}

// The example of block_table_view.h; stride 4.
Padded ExamplePadded() {
  const int32_t x = kGarbage;
  return {.entries = {7, 2, x, x, x, x, x, x, 5, 9, x},
          .row_stride = 4,
          .max_blocks = 3,
          .block_size = 4,
          .seq_lens = {6, 0, 8}};
}
Packed ExamplePacked() {
  return {.block_indptr = {0, 2, 2, 4},
          .block_indices = {7, 2, 5, 9},
          .last_block_len = {2, 0, 4},
          .block_size = 4};
}
// The token table of the example; 8 tokens wide, stride 9.
Padded ExampleTokens() {
  const int32_t x = kGarbage;
  return {.entries = {28, 29, 30, 31, 8, 9,  x,  x,  x,  x,  x,  x,  x,
                      x,  x,  x,  x,  x, 20, 21, 22, 23, 36, 37, 38, 39},
          .row_stride = 9,
          .max_blocks = 8,
          .block_size = 1,
          .seq_lens = {6, 0, 8}};
}

void ExpectOk(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// The faults of a ConvertTablesOnHost() run.
struct Faults {
  explicit Faults(ConvertTablesArgs args) : rows(args.num_rows, kGarbage) {
    args.out.row_faults = rows.data();
    args.out.num_faults = &count;
    ExpectOk(CheckConvertTables(args));
    ConvertTablesOnHost(args);
    EXPECT_EQ(count, std::count_if(rows.begin(), rows.end(), [](int32_t f) { return f != 0; }));
  }
  RowFault operator[](int row) const { return static_cast<RowFault>(rows[row]); }

  std::vector<int32_t> rows;
  int32_t count = kGarbage;
};

TEST(ConvertTablesTest, PacksAPaddedTable) {
  Padded padded = ExamplePadded();
  Packed packed = EmptyPacked(3, 5, 4);
  std::vector<int32_t> key_start_loc(4, kGarbage);
  ConvertTablesArgs args = To(FromPadded(padded), packed);
  args.out.key_start_loc = key_start_loc.data();
  ExpectOk(ConvertTables(args));
  EXPECT_THAT(packed.block_indptr, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(packed.block_indices, ElementsAre(7, 2, 5, 9, kGarbage, kGarbage));
  EXPECT_THAT(packed.last_block_len, ElementsAre(2, 0, 4));  // 8 tokens fill the last block
  EXPECT_THAT(key_start_loc, ElementsAre(0, 6, 6, 14));
}

TEST(ConvertTablesTest, PadsAPackedTableAndClearsColumnsAfterEachRow) {
  Packed packed = ExamplePacked();
  Padded padded = EmptyPadded(3, 4, 3, 4);
  ExpectOk(ConvertTables(To(FromPacked(packed), padded)));
  const int32_t x = kGarbage;  // between rows: not part of the table
  EXPECT_THAT(padded.entries, ElementsAre(7, 2, 0, x, 0, 0, 0, x, 5, 9, 0, x, x));
  EXPECT_THAT(padded.seq_lens, ElementsAre(6, 0, 8));
}

TEST(ConvertTablesTest, ConvertsAnyRowsInAnyOrder) {
  Padded padded = ExamplePadded();
  Packed packed = EmptyPacked(4, 8, 4);
  const std::vector<int32_t> table_row = {2, 0, 2, -5}, seq_lens = {5, 6, 8, 0};
  ConvertTablesArgs args = To(FromPadded(padded), packed);
  args.num_rows = 4;
  args.table_row = table_row.data();
  args.seq_lens = seq_lens.data();
  ExpectOk(ConvertTables(args));
  EXPECT_THAT(packed.block_indptr, ElementsAre(0, 2, 4, 6, 6));
  EXPECT_THAT(packed.block_indices, ElementsAre(5, 9, 7, 2, 5, 9, kGarbage, kGarbage, kGarbage));
  EXPECT_THAT(packed.last_block_len, ElementsAre(1, 2, 4, 0));
}

TEST(ConvertTablesTest, WritesBothFormatsInOneCall) {
  Padded from = ExamplePadded(), padded = EmptyPadded(3, 2, 2, 4);
  Packed packed = EmptyPacked(3, 4, 4);
  ExpectOk(ConvertTables(To(To(FromPadded(from), packed), padded)));
  EXPECT_THAT(packed.block_indices, ElementsAre(7, 2, 5, 9, kGarbage));
  EXPECT_THAT(padded.entries, ElementsAre(7, 2, 0, 0, 5, 9, kGarbage));
}

TEST(ConvertTablesTest, ZeroRowsPackToOneZero) {
  int32_t block_indptr = kGarbage;
  ExpectOk(ConvertTables({.table = {.block_size = 4},
                          .out = {.packed = {.block_indptr = &block_indptr, .block_size = 4}}}));
  EXPECT_EQ(block_indptr, 0);
}

TEST(ConvertTablesTest, ComputesKeyStartLocWithoutATable) {
  const std::vector<int32_t> seq_lens = {6, 0, 8};
  std::vector<int32_t> key_start_loc(4, kGarbage);
  ExpectOk(ConvertTables({.table = {.block_size = 1},
                          .seq_lens = seq_lens.data(),
                          .num_rows = 3,
                          .out = {.key_start_loc = key_start_loc.data()}}));
  EXPECT_THAT(key_start_loc, ElementsAre(0, 6, 6, 14));
}

TEST(ConvertTablesTest, ConvertsBlocksToTokensAndBack) {
  Padded blocks = ExamplePadded(), tokens = EmptyPadded(3, 9, 8, 1);
  ExpectOk(ConvertTables(To(FromPadded(blocks), tokens)));
  const int32_t x = kGarbage;
  EXPECT_THAT(tokens.entries, ElementsAre(28, 29, 30, 31, 8, 9, 0, 0, x,  //
                                          0, 0, 0, 0, 0, 0, 0, 0, x,      //
                                          20, 21, 22, 23, 36, 37, 38, 39, x, x));
  Padded back = EmptyPadded(3, 3, 2, 4);
  ExpectOk(ConvertTables(To(FromPadded(tokens), back)));
  EXPECT_THAT(back.entries, ElementsAre(7, 2, x, 0, 0, x, 5, 9, x, x));
  EXPECT_THAT(back.seq_lens, ElementsAre(6, 0, 8));
}

TEST(ConvertTablesTest, ReadsDecoderTokensAfterEncoderTokens) {
  Padded tokens = ExampleTokens(), blocks = EmptyPadded(3, 2, 2, 4);
  const std::vector<int32_t> requests = {2, 0, 2}, lens = {3, 6, 4}, starts = {4, 0, 0};
  ConvertTablesArgs args = To(FromPadded(tokens), blocks);
  args.table_row = requests.data();
  args.seq_lens = lens.data();
  args.key_start = starts.data();
  ExpectOk(ConvertTables(args));
  EXPECT_THAT(blocks.entries, ElementsAre(9, 0, 7, 2, 5, 0, kGarbage));
  EXPECT_THAT(blocks.seq_lens, ElementsAre(3, 6, 4));
}

TEST(ConvertTablesTest, BlocksOfOneTokenEqualSlots) {
  Padded tokens = ExampleTokens(), blocks = EmptyPadded(3, 8, 8, 1);
  tokens.seq_lens = {2, 0, 1};
  ExpectOk(ConvertTables(To(FromPadded(tokens), blocks)));
  EXPECT_THAT(absl::MakeConstSpan(blocks.entries).subspan(0, 3), ElementsAre(28, 29, 0));
  EXPECT_THAT(absl::MakeConstSpan(blocks.entries).subspan(16, 2), ElementsAre(20, 0));
}

TEST(ConvertTablesTest, SplitsLargeBlocksAndJoinsThemAgain) {
  Padded large = {.entries = {3, 1, 2, 5},
                  .row_stride = 2,
                  .max_blocks = 2,
                  .block_size = 6,
                  .seq_lens = {9, 6}};
  Padded small = EmptyPadded(2, 5, 5, 2), back = EmptyPadded(2, 2, 2, 6);
  ExpectOk(ConvertTables(To(FromPadded(large), small)));
  EXPECT_THAT(small.entries, ElementsAre(9, 10, 11, 3, 4, 6, 7, 8, 0, 0, kGarbage));
  ExpectOk(ConvertTables(To(FromPadded(small), back)));
  EXPECT_THAT(back.entries, ElementsAre(3, 1, 2, 0, kGarbage));
}

TEST(ConvertTablesTest, RejectsBlocksWithNonconsecutiveTokens) {
  const auto message = [](std::vector<int32_t> slots) {
    Padded tokens = {.entries = std::move(slots),
                     .row_stride = 4,
                     .max_blocks = 4,
                     .block_size = 1,
                     .seq_lens = {4}};
    Padded blocks = EmptyPadded(1, 2, 2, 4);
    const absl::Status status = ConvertTables(To(FromPadded(tokens), blocks));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(blocks.entries, Each(kGarbage));
    EXPECT_THAT(blocks.seq_lens, Each(kGarbage));
    const Faults faults(To(FromPadded(tokens), blocks));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(ToString(faults[0]))));
    EXPECT_THAT(blocks.entries, ElementsAre(0, 0, kGarbage));
    EXPECT_THAT(blocks.seq_lens, ElementsAre(0));
    return std::string(status.message());
  };
  EXPECT_THAT(message({28, 29, 31, 30}),
              AllOf(HasSubstr("runs of consecutive slots"),
                    HasSubstr("block 0, of 4 tokens, begins at token 0 with entry 28")));
  EXPECT_THAT(message({29, 30, 31, 32}), HasSubstr("begins at token 0 with entry 29"));
  EXPECT_THAT(message({-4, -3, -2, -1}), HasSubstr("no block of the cache"));
}

TEST(ConvertTablesTest, RejectsSlotsThatExceedInt32) {
  const auto status = [](int32_t entry, Padded& tokens) {
    Padded blocks = {.entries = {1, 2, 7, entry},
                     .row_stride = 2,
                     .max_blocks = 2,
                     .block_size = 4,
                     .seq_lens = {4, 7}};
    return ConvertTables(To(FromPadded(blocks), tokens));
  };
  Padded tokens = EmptyPadded(2, 8, 8, 1);
  // 2^31 / 4 - 1 is the last block whose slots all fit int32: 2^31 - 4 to 2^31 - 1.
  for (const int32_t entry : {1 << 29, INT32_MAX, -1, INT32_MIN}) {
    EXPECT_EQ(status(entry, tokens).code(), absl::StatusCode::kInvalidArgument) << entry;
    EXPECT_THAT(std::string(status(entry, tokens).message()),
                AllOf(HasSubstr("rows[1]: a token has no block of the cache"),
                      HasSubstr(std::to_string(entry))));
    EXPECT_THAT(tokens.entries, Each(kGarbage));
  }
  ExpectOk(status((1 << 29) - 1, tokens));
  EXPECT_THAT(tokens.entries, ElementsAre(4, 5, 6, 7, 0, 0, 0, 0, 28, 29, 30, 31, INT32_MAX - 3,
                                          INT32_MAX - 2, INT32_MAX - 1, 0, kGarbage));
}

TEST(ConvertTablesTest, RejectsSlotsOutsideACacheOfKnownSize) {
  Padded tokens = ExampleTokens(), blocks = EmptyPadded(3, 2, 2, 4);
  ConvertTablesArgs args = To(FromPadded(tokens), blocks);
  args.table.num_blocks = 39;  // slots 0 to 38
  const Faults faults(args);
  EXPECT_THAT(faults.rows, ElementsAre(0, 0, static_cast<int32_t>(RowFault::kNoBlock)));
  args.table.num_blocks = 40;
  EXPECT_EQ(Faults(args).count, 0);
}

TEST(ConvertTablesTest, EntriesPastARowsEndDoNotMatter) {
  Padded blocks = {.entries = {1, INT32_MIN},
                   .row_stride = 2,
                   .max_blocks = 2,
                   .block_size = 4,
                   .seq_lens = {4}};
  Padded tokens = EmptyPadded(1, 8, 8, 1);
  ExpectOk(ConvertTables(To(FromPadded(blocks), tokens)));
  EXPECT_THAT(tokens.entries, ElementsAre(4, 5, 6, 7, 0, 0, 0, 0, kGarbage));
}

// Tests each faulty row, followed by a good row. ConvertTables() rejects the faulty row before it
// writes. ConvertTablesOnHost(), like the kernel, makes it an empty row with a reason, and converts
// the good row.
TEST(ConvertTablesTest, RowThatCannotBeConvertedBecomesEmptyWithAFault) {
  struct Case {
    const char* what;
    int32_t table_row, seq_len, key_start, first_query, end_query;
    RowFault fault;
    const char* message;
  };
  const Case cases[] = {
      {"no such table", 2, 4, 0, 0, 1, RowFault::kTableRow, "table row 2 of 2"},
      {"a negative table", -1, 4, 0, 0, 1, RowFault::kTableRow, "table row -1"},
      {"a negative length", 0, -1, 0, 0, 1, RowFault::kLength, "seq_len -1"},
      {"wider than the table", 0, 13, 0, 0, 1, RowFault::kLength, "with room for 12"},
      {"an absurd length", 0, INT_MAX, 0, 0, 1, RowFault::kLength, "seq_len 2147483647"},
      {"a negative start", 0, 4, -4, 0, 1, RowFault::kLength, "from -4"},
      {"a start past the table", 0, 4, 12, 0, 1, RowFault::kLength, "from 12"},
      {"absurd all over", 0, INT_MAX, INT_MAX, 0, 1, RowFault::kLength, "seq_len 2147483647"},
      {"a start within a block", 0, 4, 2, 0, 1, RowFault::kNoRun, "from 2"},
      {"more queries than keys", 0, 4, 0, 0, 5, RowFault::kLength, "queries 0 to 5"},
      {"negative queries", 0, 4, 0, 3, 2, RowFault::kLength, "queries 3 to 2"},
      {"queries beyond int32", 0, 4, 0, INT_MIN, INT_MAX, RowFault::kLength, "queries -2147483648"},
      {"wider than the output", 0, 12, 0, 0, 1, RowFault::kNoRoom, "room for 8 in out.table"},
  };
  Padded from = {.entries = {1, 2, 3, 4, 5, 6},
                 .row_stride = 3,
                 .max_blocks = 3,
                 .block_size = 4,
                 .seq_lens = {0, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const std::vector<int32_t> table_row = {c.table_row, 1}, seq_lens = {c.seq_len, 5},
                               key_start = {c.key_start, 4};
    std::vector<int32_t> query_start_loc = {c.first_query, c.end_query, c.end_query};
    Padded padded = EmptyPadded(2, 2, 2, 4);
    Packed packed = EmptyPacked(2, 6, 4);
    ConvertTablesArgs args = To(To(FromPadded(from), packed), padded);
    args.table_row = table_row.data();
    args.seq_lens = seq_lens.data();
    args.key_start = key_start.data();
    args.query_start_loc = query_start_loc.data();
    args.selection = {.keys = TableKeys::kWindow, .window_left = 100};
    const absl::Status status = ConvertTables(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rows[0]: "), HasSubstr(std::string(ToString(c.fault))),
                      HasSubstr(c.message)));
    EXPECT_THAT(padded.entries, Each(kGarbage));
    EXPECT_THAT(packed.block_indptr, Each(kGarbage));

    EXPECT_THAT(Faults(args).rows, ElementsAre(static_cast<int32_t>(c.fault), 0));
    EXPECT_THAT(padded.entries, ElementsAre(0, 0, 5, 6, kGarbage));
    EXPECT_THAT(padded.seq_lens, ElementsAre(0, 5));
    EXPECT_THAT(packed.block_indptr, ElementsAre(0, 0, 2));
    EXPECT_THAT(packed.last_block_len, ElementsAre(0, 1));
  }
}

TEST(ConvertTablesTest, InconsistentPackedTableYieldsEmptyRows) {
  // Rows: good; last_block_len 0; descending; beyond the indices; descending, with last_block_len 3
  // of 2; an empty row with a last_block_len.
  Packed packed = {.block_indptr = {0, 2, 3, 1, 9, 4, 4},
                   .block_indices = {11, 12, 13, 14},
                   .last_block_len = {1, 0, 1, 1, 3, 1},
                   .block_size = 2};
  Padded padded = EmptyPadded(6, 3, 3, 2);
  const int32_t length = static_cast<int32_t>(RowFault::kLength);
  EXPECT_THAT(Faults(To(FromPacked(packed), padded)).rows,
              ElementsAre(0, length, length, length, length, length));
  EXPECT_THAT(padded.seq_lens, ElementsAre(3, 0, 0, 0, 0, 0));
  EXPECT_THAT(absl::MakeConstSpan(padded.entries).subspan(0, 6), ElementsAre(11, 12, 0, 0, 0, 0));
  EXPECT_THAT(absl::MakeConstSpan(padded.entries).subspan(3, 15), Each(0));
  EXPECT_THAT(
      std::string(ConvertTables(To(FromPacked(packed), padded)).message()),
      HasSubstr("rows[1]: a length or a count is negative or too large: block_indptr 2 to 3 "
                "of 4, last_block_len 0"));
  packed = ExamplePacked();
  packed.block_indptr[0] = 1;
  padded = EmptyPadded(3, 3, 3, 4);
  EXPECT_THAT(Faults(To(FromPacked(packed), padded)).rows, ElementsAre(length, 0, 0));
  packed = {.block_indptr = {0, 2}, .block_indices = {1, 2}, .last_block_len = {1}};
  packed.block_size = INT_MAX;  // 2^31 keys
  padded = EmptyPadded(1, 3, 3, INT_MAX);
  EXPECT_THAT(Faults(To(FromPacked(packed), padded)).rows, ElementsAre(length));
}

TEST(ConvertTablesTest, NoRowIsPackedAfterTheFirstThatDoesNotFit) {
  Padded from = {.entries = {1, 2, 3, 4, 5, 6},
                 .row_stride = 3,
                 .max_blocks = 3,
                 .block_size = 2,
                 .seq_lens = {0, 0}};
  // Rows: good (2 blocks); table row 7; negative; good (3 blocks); does not fit; empty; would fit
  // alone, but follows a row that does not fit.
  const std::vector<int32_t> table_row = {0, 7, 0, 1, 1, 0, 0}, seq_lens = {4, 2, -3, 5, 4, 0, 1};
  Packed packed = EmptyPacked(7, 6, 2);
  std::vector<int32_t> key_start_loc(8, kGarbage);
  ConvertTablesArgs args = To(FromPadded(from), packed);
  args.num_rows = 7;
  args.table_row = table_row.data();
  args.seq_lens = seq_lens.data();
  args.out.key_start_loc = key_start_loc.data();
  const int32_t no_room = static_cast<int32_t>(RowFault::kNoRoom);
  EXPECT_THAT(Faults(args).rows,
              ElementsAre(0, static_cast<int32_t>(RowFault::kTableRow),
                          static_cast<int32_t>(RowFault::kLength), 0, no_room, 0, no_room));
  EXPECT_THAT(packed.block_indptr, ElementsAre(0, 2, 2, 2, 5, 5, 5, 5));
  EXPECT_THAT(packed.block_indices, ElementsAre(1, 2, 4, 5, 6, kGarbage, kGarbage));
  EXPECT_THAT(key_start_loc, ElementsAre(0, 4, 4, 4, 9, 9, 9, 9));
}

TEST(ConvertTablesTest, RejectsMoreKeysThanInt32) {
  const std::vector<int32_t> seq_lens = {INT_MAX, 1, 0};
  std::vector<int32_t> key_start_loc(4, kGarbage);
  const ConvertTablesArgs args = {.table = {.block_size = 1},
                                  .seq_lens = seq_lens.data(),
                                  .num_rows = 3,
                                  .out = {.key_start_loc = key_start_loc.data()}};
  EXPECT_THAT(std::string(ConvertTables(args).message()), HasSubstr("rows[1]: its tokens pass"));
  EXPECT_THAT(Faults(args).rows, ElementsAre(0, static_cast<int32_t>(RowFault::kNoRoom), 0));
  EXPECT_THAT(key_start_loc, ElementsAre(0, INT_MAX, INT_MAX, INT_MAX));
}

TEST(ConvertTablesTest, RandomTablesSurviveARoundTrip) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 500; ++i) {
    const int num_rows = below(7), max_blocks = 1 + below(9), block_size = 1 + below(20);
    const int max_tokens = max_blocks * block_size;
    Padded padded = EmptyPadded(num_rows, max_blocks + below(3), max_blocks, block_size);
    for (int row = 0; row < num_rows; ++row) {
      padded.seq_lens[row] = below(3) == 0 ? 0 : below(max_tokens + 1);
      for (int column = 0; column < NumBlocksFor(padded.seq_lens[row], block_size); ++column) {
        padded.entries[row * padded.row_stride + column] = below(1000);
      }
    }
    Packed packed = EmptyPacked(num_rows, num_rows * max_blocks, block_size);
    ExpectOk(ConvertTables(To(FromPadded(padded), packed)));
    Padded unpacked = EmptyPadded(num_rows, max_blocks, max_blocks, block_size);
    ExpectOk(ConvertTables(To(FromPacked(packed), unpacked)));
    Padded tokens = EmptyPadded(num_rows, max_tokens + below(3), max_tokens, 1);
    ExpectOk(ConvertTables(To(FromPadded(padded), tokens)));
    Padded blocks = EmptyPadded(num_rows, max_blocks, max_blocks, block_size);
    ExpectOk(ConvertTables(To(FromPadded(tokens), blocks)));

    EXPECT_EQ(unpacked.seq_lens, padded.seq_lens);
    EXPECT_EQ(blocks.seq_lens, padded.seq_lens);
    for (int row = 0; row < num_rows; ++row) {
      for (int column = 0; column < max_blocks; ++column) {
        const int32_t entry = padded.entries[row * padded.row_stride + column];
        const int32_t expected = entry == kGarbage ? 0 : entry;
        ASSERT_EQ(unpacked.entries[row * max_blocks + column], expected);
        ASSERT_EQ(blocks.entries[row * max_blocks + column], expected);
      }
      for (int token = 0; token < padded.seq_lens[row]; ++token) {
        const int32_t block = padded.entries[row * padded.row_stride + token / block_size];
        ASSERT_EQ(tokens.entries[row * tokens.row_stride + token],
                  block * block_size + token % block_size);
      }
    }
  }
}

// Returns the slot of key `key` of a row of a table, or of row r of a packed table.
int64_t SlotOf(const BlockTableView& table, int64_t row, int64_t key) {
  return table.entries[row * table.row_stride + key / table.block_size] *
             int64_t{table.block_size} +
         key % table.block_size;
}
int64_t SlotOf(const PackedBlockTable& packed, int r, int64_t key) {
  return packed.block_indices[packed.block_indptr[r] + key / packed.block_size] *
             int64_t{packed.block_size} +
         key % packed.block_size;
}

// Returns the first selected key of row r of the input, counted from key_start, by definition.
int64_t FirstKey(const ConvertTablesArgs& args, int r) {
  if (args.selection.keys != TableKeys::kWindow || args.packed.block_indptr) return 0;
  const int64_t first_query =
      args.seq_lens[r] - (int64_t{args.query_start_loc[r + 1]} - args.query_start_loc[r]);
  const int64_t first_seen = std::max<int64_t>(first_query - args.selection.window_left, 0);
  return first_seen / args.out.table.block_size * args.out.table.block_size;
}

TEST(ConvertTablesTest, KeysKeepTheirSlotsInRandomAndHostileTables) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int64_t num_good = 0, num_faulty = 0;
  for (int i = 0; i < 2000; ++i) {
    ConversionShape shape = {.form = kAllConversionForms[i % 4],
                             .num_rows = below(20),
                             .max_blocks = 1 + below(12),
                             .block_size = 1 + below(9),
                             .max_indices = below(120)};
    if (shape.form != ConversionForm::kPackedToPadded) {
      shape.selection = {.keys = static_cast<TableKeys>(below(3)), .window_left = below(30)};
    }
    BuilderMemory<ConvertTablesArgs> memory(
        [&](ArrayCarver& carver) { return CarveConversion(shape, carver); });
    DrawConversion(random, below(2) == 0 ? 0 : 0.1, memory.args());
    const ConvertTablesArgs& args = memory.args();
    ExpectOk(CheckConvertTables(args));
    ConvertTablesOnHost(args);
    const BlockTableView table = args.out.table;
    int num_faults = 0, num_indices = 0;
    for (int r = 0; r < args.num_rows; ++r) {
      SCOPED_TRACE(testing::Message() << "conversion " << i << ", row " << r);
      const int64_t len = args.out.seq_lens[r];
      num_faults += args.out.row_faults[r] != 0;
      ASSERT_TRUE(args.out.row_faults[r] == 0 || len == 0);
      const int64_t first = FirstKey(args, r);
      if (args.out.row_faults[r] == 0 && !args.packed.block_indptr) {
        const int64_t seq_len = args.seq_lens[r];
        ASSERT_EQ(len, args.selection.keys == TableKeys::kComputed && seq_len > 0
                           ? seq_len - (args.query_start_loc[r + 1] - args.query_start_loc[r])
                           : seq_len - (seq_len > 0 ? first : 0));
      }
      for (int64_t key = 0; key < len; ++key) {
        const int64_t expected = args.packed.block_indptr ? SlotOf(args.packed, r, key)
                                                          : SlotOf(args.table, args.table_row[r],
                                                                   args.key_start[r] + first + key);
        ASSERT_EQ(SlotOf(table, r, key), expected) << "key " << key;
        if (args.out.packed.block_indptr) {
          ASSERT_EQ(SlotOf(args.out.packed, r, key), expected);
        }
      }
      const int num_blocks = NumBlocksFor(static_cast<int32_t>(len), table.block_size);
      for (int column = num_blocks; column < table.max_blocks; ++column) {
        ASSERT_EQ(table.entries[r * table.row_stride + column], 0);
      }
      if (args.out.packed.block_indptr) {
        ASSERT_EQ(args.out.packed.block_indptr[r], num_indices);
        num_indices += num_blocks;
        ASSERT_EQ(args.out.packed.block_indptr[r + 1], num_indices);
        ASSERT_EQ(args.out.key_start_loc[r + 1] - args.out.key_start_loc[r], len);
        ASSERT_EQ(args.out.packed.last_block_len[r],
                  len == 0 ? 0 : (len - 1) % table.block_size + 1);
      }
      (len > 0 ? num_good : num_faulty) += 1;
    }
    ASSERT_EQ(*args.out.num_faults, num_faults);
    EXPECT_EQ(ConvertTables(args).ok(), num_faults == 0);
  }
  EXPECT_GT(num_good, 2000);
  EXPECT_GT(num_faulty, 500);
}

TEST(ConvertTablesTest, RejectsInconsistentArguments) {
  for (const RefusedConversion& refused : RefusedConversions()) {
    EXPECT_EQ(CheckConvertTables(refused.args).message(), refused.message);
    EXPECT_EQ(ConvertTables(refused.args).message(), refused.message);
  }
}

}  // namespace
}  // namespace reprise
