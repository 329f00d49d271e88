#include "reprise/runner/slots/embedding_rows.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kData[5 * 4] = {};
constexpr EmbeddingRows kRows = {.data = kData, .row_stride = 5, .num_rows = 3, .dim = 4};
constexpr EmbeddingFormat kOnHost = {.dim = 4};

std::string Refused(const EmbeddingRows& rows, const EmbeddingFormat& format) {
  const absl::Status status = CheckEmbeddingRows("image", rows, format);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(EmbeddingRowsTest, APartBeginsAtItsFirstRow) {
  const EmbeddingRows part = kRows.Part(1, 2);
  EXPECT_EQ(part.data, kData + 5);
  EXPECT_EQ(part.num_rows, 2);
  EXPECT_EQ(part.row(1), kData + 10);
}

TEST(EmbeddingRowsTest, AcceptsRowsOfTheHostAndOfTheRunnersGpu) {
  EXPECT_TRUE(CheckEmbeddingRows("image", kRows, kOnHost).ok());
  EmbeddingFormat format = kOnHost;
  format.gpu = 1;
  EXPECT_TRUE(CheckEmbeddingRows("image", kRows, format).ok());
  EmbeddingRows rows = kRows;
  rows.gpu = 1;
  EXPECT_TRUE(CheckEmbeddingRows("image", rows, format).ok());
  rows.gpu = 0;
  EXPECT_EQ(Refused(rows, format), "image: rows must be in memory of GPU 1 or the host: got GPU 0");
  EXPECT_EQ(Refused(rows, kOnHost), "image: rows must be in memory of the host: got GPU 0");
}

TEST(EmbeddingRowsTest, RejectsRowsThatDoNotMatchTheFormat) {
  EXPECT_THAT(Refused(kRows, {}), HasSubstr("the model takes token ids only"));
  EmbeddingRows rows = kRows;
  rows.dim = 3;
  EXPECT_EQ(Refused(rows, kOnHost), "image: dim must be 4: got 3");
  rows = kRows;
  rows.dtype = DType::kFloat16;
  EXPECT_EQ(Refused(rows, kOnHost), "image: dtype must be float32: got float16");
  rows = kRows;
  rows.num_rows = 0;
  EXPECT_THAT(Refused(rows, kOnHost), HasSubstr("at least 1 row, got 0"));
  rows = kRows;
  rows.row_stride = 3;
  EXPECT_THAT(Refused(rows, kOnHost), HasSubstr("row_stride must be at least dim"));
  rows = kRows;
  rows.data = nullptr;
  EXPECT_THAT(Refused(rows, kOnHost), HasSubstr("data must not be null"));
}

}  // namespace
}  // namespace reprise
