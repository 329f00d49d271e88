#include "reprise/attention/reference/picture_case.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

TEST(PictureCaseTest, DrawsTheRowsBeforeTheBuildersResult) {
  const absl::StatusOr<std::string> text =
      DrawCase({.query_lens = {2}, .seq_lens = {3}, .block_size = 2, .chunk_size = 2});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "rows\n"
            "row 0: 2 queries over 3 keys of table row 0, blocks 1 2\n"
            "  token  pos | 0  2\n"
            "      0    1 | ## .\n"
            "      1    2 | ## #\n"
            "\n"
            "virtual rows of chunks of 2\n"
            "row 0: 1 query over 2 keys of table row 0, blocks 1\n"
            "  token  pos | 0\n"
            "      0    1 | ##\n"
            "row 1: 1 query over 1 key of table row 0 from 2, blocks 2\n"
            "  token  pos | 2\n"
            "      1    2 | #\n");
}

TEST(PictureCaseTest, RejectsInvalidCases) {
  const auto refusal = [](const PictureCase& picture) {
    const absl::Status status = DrawCase(picture).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({.query_lens = {1, 2}, .seq_lens = {1}}),
            "seq_lens: expected 2 (length of query_lens), got 1");
  EXPECT_EQ(refusal({.query_lens = {4}, .seq_lens = {3}}),
            "seq_lens[0]: expected at least 4 (its query_len), got 3");
  EXPECT_EQ(refusal({.query_lens = {1}, .seq_lens = {1}, .block_size = 0}),
            "block_size: expected at least 1, got 0");
  EXPECT_EQ(refusal({.query_lens = {1}, .seq_lens = {1}, .chunk_size = 0}),
            "chunk_size: expected at least 1, got 0");
  EXPECT_EQ(refusal({.query_lens = {1}, .seq_lens = {1}, .encoder_lens = {1, 2}}),
            "encoder_lens: expected 1 (length of query_lens), got 2");
  EXPECT_THAT(refusal({.query_lens = {1}, .seq_lens = {1}, .encoder_lens = {-1}}),
              HasSubstr("encoder_len -1"));
  EXPECT_THAT(refusal({.query_lens = {-1}, .seq_lens = {1}}), HasSubstr("query_len"));
  EXPECT_EQ(refusal({.query_lens = {2}, .seq_lens = {9}, .tree = {-1, 0, 1}}),
            "query_lens[0]: expected 3 (length of tree), got 2");
  EXPECT_THAT(refusal({.query_lens = {2}, .seq_lens = {9}, .tree = {-1, 1}}), HasSubstr("cycle"));
  EXPECT_EQ(refusal({.query_lens = {2}, .seq_lens = {9}, .ranks = 0}),
            "ranks and interleave: expected at least 1, got 0 and 1");
  EXPECT_THAT(refusal({.encoder_inputs = {-1}}), HasSubstr("rows[0]: a length"));
}

// The drawings in docs/metadata.md must equal the output of show_batch.
TEST(PictureCaseTest, DrawingsMatchTheDocumentation) {
  std::ifstream file("docs/metadata.md");
  ASSERT_TRUE(file) << "docs/metadata.md is missing from the test's data";
  std::ostringstream page;
  page << file.rdbuf();
  struct Example {
    std::string flags;
    PictureCase picture;
  };
  const std::vector<Example> examples = {
      {"--query_lens 1,4 --seq_lens 6,7 --block_size 4",
       {.query_lens = {1, 4}, .seq_lens = {6, 7}, .block_size = 4}},
      {"--query_lens 1,3 --seq_lens 9,12 --block_size 4 --window_left 3",
       {.query_lens = {1, 3}, .seq_lens = {9, 12}, .block_size = 4, .window_left = 3}},
      {"--query_lens 4,1 --seq_lens 6,9 --block_size 2 --chunk_size 4",
       {.query_lens = {4, 1}, .seq_lens = {6, 9}, .block_size = 2, .chunk_size = 4}},
      {"--query_lens 1,2 --seq_lens 5,2 --encoder_lens 7,3 --block_size 4",
       {.query_lens = {1, 2}, .seq_lens = {5, 2}, .block_size = 4, .encoder_lens = {7, 3}}},
      {"--query_lens 4 --seq_lens 9 --block_size 4 --tree=-1,0,0,1",
       {.query_lens = {4}, .seq_lens = {9}, .block_size = 4, .tree = {-1, 0, 0, 1}}},
      {"--query_lens 2 --seq_lens 9 --block_size 2 --ranks 2 --interleave 2",
       {.query_lens = {2}, .seq_lens = {9}, .block_size = 2, .ranks = 2, .interleave = 2}},
      {"--encoder_inputs 3,2 --profile_inputs 3,2",
       {.encoder_inputs = {3, 2}, .profile_inputs = {3, 2}}},
  };
  for (const Example& example : examples) {
    const absl::StatusOr<std::string> text = DrawCase(example.picture);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(page.str(), HasSubstr("$ show_batch " + example.flags + "\n" + *text + "```\n"));
  }
}

}  // namespace
}  // namespace reprise
