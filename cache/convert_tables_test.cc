#include "cache/convert_tables.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// What the kernels make of good arguments is tested where there is a GPU.
TEST(ConvertTablesTest, BadArgumentsAreNamedBeforeAnythingIsLaunched) {
  int32_t cells[4] = {};
  PackTableParams pack = {.block_table = cells,
                          .row_stride = 2,
                          .num_tables = 2,
                          .max_blocks = 2,
                          .seq_lens = cells,
                          .num_rows = 1,
                          .block_size = 0,
                          .block_indptr = cells,
                          .last_block_len = cells};
  EXPECT_THAT(Message(LaunchPackBlockTable(pack, nullptr)),
              HasSubstr("block_size must be positive: expected at least 1, got 0"));
  pack.block_size = 4;
  pack.num_rows = -1;
  EXPECT_THAT(Message(LaunchPackBlockTable(pack, nullptr)),
              HasSubstr("num_rows must not be negative: expected at least 0, got -1"));
  pack.num_rows = 1;
  pack.max_indices = 3;
  EXPECT_THAT(Message(LaunchPackBlockTable(pack, nullptr)),
              HasSubstr("block_indices is missing: expected 3 cells, got null"));
  EXPECT_THAT(Message(LaunchUnpackBlockTable({.num_rows = 1, .block_size = 1}, nullptr)),
              HasSubstr("seq_lens is missing"));
  EXPECT_THAT(Message(LaunchTokensToBlocks({.num_rows = 2, .block_size = 1}, nullptr)),
              HasSubstr("lens is missing: expected 2 cells"));
  EXPECT_THAT(Message(LaunchBlocksToTokens({.block_size = 1, .max_tokens = -3}, nullptr)),
              HasSubstr("max_tokens"));
}

}  // namespace
}  // namespace reprise
