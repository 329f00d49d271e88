#include "reprise/engine/prompt_content.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr PositionLimits kOneDim = {};
constexpr PositionLimits kThreeDims = {.num_position_dims = 3, .max_position = 100};

const PrefixHasher& Hasher() {
  static const PrefixHasher hasher({.low = 3, .high = 5});
  return hasher;
}

RequestEmbeddings Range(int first_token, const std::vector<float>& rows, std::string content = "") {
  return {.first_token = first_token,
          .rows = {.data = rows.data(),
                   .row_stride = 1,
                   .num_rows = static_cast<int>(rows.size()),
                   .dim = 1},
          .content = std::move(content)};
}

std::vector<ContentKey> KeysOf(const Request& request, const PositionLimits& limits = kOneDim,
                               int64_t unique = 0) {
  EXPECT_TRUE(CheckPromptContent(request, limits).ok()) << CheckPromptContent(request, limits);
  return MakePromptContent(request, limits, &Hasher(), unique).keys;
}

// ---- Keys.

const std::vector<float> kCat = {1, 2, 3};
const std::vector<float> kCatAgain = {1, 2, 3};
const std::vector<float> kDog = {1, 2, 4};

TEST(PromptContentTest, EmbeddingsAreIdentifiedByBytesOrByName) {
  const std::vector<int32_t> prompt(8, 0);
  const auto keys = [&](const RequestEmbeddings& range, int64_t unique = 0) {
    return KeysOf({.prompt = prompt, .embeddings = {range}}, kOneDim, unique);
  };
  EXPECT_EQ(keys(Range(2, kCat)), keys(Range(2, kCatAgain), 7));
  EXPECT_NE(keys(Range(2, kCat)), keys(Range(2, kDog)));
  EXPECT_NE(keys(Range(2, kCat)), keys(Range(3, kCat)));
  // If the embeddings have a name, only the name counts.
  EXPECT_EQ(keys(Range(2, kCat, "pet")), keys(Range(2, kDog, "pet"), 7));
  EXPECT_NE(keys(Range(2, kCat, "cat")), keys(Range(2, kCat, "dog")));
  EXPECT_NE(keys(Range(2, kCat, "cat")), keys(Range(2, kCat)));
  // Rows that the host cannot read belong to one request, unless they have a name.
  RequestEmbeddings on_gpu = Range(2, kCat);
  on_gpu.rows.gpu = 0;
  EXPECT_EQ(keys(on_gpu, 7), keys(on_gpu, 7));
  EXPECT_NE(keys(on_gpu, 7), keys(on_gpu, 8));
  on_gpu.content = "cat";
  EXPECT_EQ(keys(on_gpu, 7), keys(Range(2, kCat, "cat"), 8));
  // The key of strided rows does not depend on the memory between them.
  const std::vector<float> apart = {1, 9, 2, 8, 3, 7};
  RequestEmbeddings strided = Range(2, kCat);
  strided.rows.data = apart.data();
  strided.rows.row_stride = 2;
  EXPECT_EQ(keys(strided), keys(Range(2, kCat)));
}

// Positions [3, n] of 4 tokens of text, an image of 2 x 3, and `num_text` more tokens of text.
std::vector<int32_t> ImagePositions(int num_text) {
  std::vector<std::vector<int32_t>> dims = {{0, 1, 2, 3, 4, 4, 4, 4, 4, 4},
                                            {0, 1, 2, 3, 4, 4, 4, 5, 5, 5},
                                            {0, 1, 2, 3, 4, 5, 6, 4, 5, 6}};
  std::vector<int32_t> all;
  for (auto& dim : dims) {
    for (int i = 0; i < num_text; ++i) dim.push_back(7 + i);
    all.insert(all.end(), dim.begin(), dim.end());
  }
  return all;
}

TEST(PromptContentTest, PositionsHaveKeysUnlessTheyAreConsecutive) {
  Request text = {.prompt = std::vector<int32_t>(5, 0)};
  EXPECT_THAT(KeysOf(text, kThreeDims), IsEmpty());
  for (int dim = 0; dim < 3; ++dim) {
    for (int i = 0; i < 5; ++i) text.positions.push_back(i);
  }
  EXPECT_THAT(KeysOf(text, kThreeDims), IsEmpty());  // positions of plain text need no key
  EXPECT_EQ(MakePromptContent(text, kThreeDims, nullptr, 0).position_delta, 0);

  // Tokens 5 to 9 of the image and the first token after it have one key, for any text after the
  // image.
  std::vector<ContentKey> keys;
  for (const int num_text : {1, 2, 9}) {
    const Request image = {.prompt = std::vector<int32_t>(10 + num_text, 0),
                           .positions = ImagePositions(num_text)};
    const std::vector<ContentKey> these = KeysOf(image, kThreeDims);
    ASSERT_THAT(these, SizeIs(1));
    EXPECT_EQ(these[0].first_token, 5);
    EXPECT_EQ(these[0].num_tokens, 6);
    if (num_text > 1) {
      EXPECT_EQ(these, keys);
    }
    keys = these;
    EXPECT_EQ(MakePromptContent(image, kThreeDims, nullptr, 0).position_delta, 7 - 10);
  }
  // If the prompt ends with the image, the key includes the first generated token.
  const Request ends = {.prompt = std::vector<int32_t>(10, 0), .positions = ImagePositions(0)};
  EXPECT_EQ(KeysOf(ends, kThreeDims), keys);
}

// NumEqualTokens() is at most the number of leading tokens with equal content.
TEST(PromptContentTest, EqualKeysMeanEqualContent) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int num_shared = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    constexpr int kTokens = 12;
    Request requests[2];
    const std::vector<float>* images[] = {&kCat, &kCatAgain, &kDog};
    for (Request& request : requests) {
      request.prompt.assign(kTokens, 0);
      for (int token = below(3); token + 3 <= kTokens; token += 3 + below(4)) {
        request.embeddings.push_back(Range(token, *images[below(3)]));
      }
      // Positions with few jumps, in all dimensions or in some of them.
      std::vector<std::vector<int32_t>> dims(3);
      int32_t next[3] = {};
      for (int token = 0; token < kTokens; ++token) {
        if (below(6) == 0) {
          const int jump = 1 + below(2);
          for (int dim = below(3); dim < 3; ++dim) next[dim] += jump;
        }
        for (int dim = 0; dim < 3; ++dim) dims[dim].push_back(next[dim]++);
      }
      for (const auto& dim : dims) {
        request.positions.insert(request.positions.end(), dim.begin(), dim.end());
      }
    }
    const auto content_at = [&](const Request& request, int token) {
      std::vector<double> content;
      for (int dim = 0; dim < 3; ++dim) content.push_back(request.positions[dim * kTokens + token]);
      for (const RequestEmbeddings& range : request.embeddings) {
        const int i = token - range.first_token;
        if (i < 0 || i >= range.rows.num_rows) continue;
        content.push_back(*static_cast<const float*>(range.rows.row(i)));
      }
      return content;
    };
    int num_equal = 0;
    while (num_equal < kTokens &&
           content_at(requests[0], num_equal) == content_at(requests[1], num_equal)) {
      ++num_equal;
    }
    const auto a = KeysOf(requests[0], kThreeDims, 0);
    const auto b = KeysOf(requests[1], kThreeDims, 1);
    const int got = NumEqualTokens(a, b, kTokens);
    ASSERT_LE(got, num_equal) << "trial " << trial;
    ASSERT_EQ(got, NumEqualTokens(b, a, kTokens));
    ASSERT_EQ(NumEqualTokens(a, a, kTokens), kTokens);
    num_shared += got;
  }
  EXPECT_GT(num_shared, 1000);
}

// ---- Rows.

TEST(PromptContentTest, ChunksContainEveryRowOnce) {
  const std::vector<float> first = {10, 11, 12};
  const std::vector<float> second = {20, 21, 22, 23};
  const Request request = {.prompt = std::vector<int32_t>(14, 0),
                           .embeddings = {Range(2, first), Range(5, second), Range(11, first)}};
  const PromptContent content = MakePromptContent(request, kOneDim, nullptr, 0);
  EXPECT_THAT(content.keys, IsEmpty());
  std::vector<PlaceholderCopy> copies;
  for (int chunk = 1; chunk <= 14; ++chunk) {
    std::vector<float> got(14, -1);
    int row = 0;
    for (int begin = 0; begin < 14; begin += chunk, ++row) {
      std::vector<ScheduledEmbeddings> ranges;
      AppendEmbeddings(request, content, begin, std::min(chunk, 14 - begin), row, copies, ranges);
      for (const ScheduledEmbeddings& range : ranges) {
        EXPECT_EQ(range.row, row);
        for (int i = 0; i < range.rows.num_rows; ++i) {
          float& place = got.at(begin + range.first_token + i);
          EXPECT_EQ(place, -1);
          place = *static_cast<const float*>(range.rows.row(i));
        }
      }
    }
    EXPECT_THAT(got, testing::ElementsAre(-1, -1, 10, 11, 12, 20, 21, 22, 23, -1, -1, 10, 11, 12))
        << "chunks of " << chunk;
  }
}

TEST(PromptContentTest, RowsAfterThePromptHaveNoPositions) {
  const Request request = {.prompt = std::vector<int32_t>(12, 0), .positions = ImagePositions(2)};
  const RowPositions some = PositionsOf(request, 8, 3);
  EXPECT_EQ(some.count, 3);
  EXPECT_EQ(some.data[some.dim_stride], 5);  // rows of the image, token 8
  EXPECT_EQ(PositionsOf(request, 10, 5).count, 2);
  EXPECT_EQ(PositionsOf(request, 12, 1).count, 0);
  EXPECT_EQ(PositionsOf({.prompt = {1, 2}}, 0, 2).count, 0);
}

// ---- Refusals.

TEST(PromptContentTest, RejectsContentThatDoesNotFitThePrompt) {
  const auto refused = [](const Request& request, const PositionLimits& limits) {
    const absl::Status status = CheckPromptContent(request, limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  Request request = {.prompt = {1, 2, 3, 4, 5, 6}};
  request.embeddings = {Range(4, kCat)};
  EXPECT_THAT(refused(request, kOneDim),
              HasSubstr("embeddings[0] must lie within the prompt: "
                        "expected a non-empty range in [0, 6), got [4, 7)"));
  request.embeddings = {Range(-1, kCat)};
  EXPECT_THAT(refused(request, kOneDim), HasSubstr("got [-1, 2)"));
  request.embeddings = {Range(1, {})};
  EXPECT_THAT(refused(request, kOneDim), HasSubstr("got [1, 1)"));
  request.embeddings = {Range(0, kCat), Range(2, kDog)};
  EXPECT_THAT(refused(request, kOneDim),
              HasSubstr("embeddings[1] must follow the previous range: expected first_token of at "
                        "least 3, got 2"));
  request.embeddings = {Range(0, kCat), Range(3, kDog)};
  EXPECT_TRUE(CheckPromptContent(request, kOneDim).ok());

  request.positions = std::vector<int32_t>(6, 0);
  EXPECT_THAT(refused(request, kOneDim), HasSubstr("expected none, got 6"));
  EXPECT_THAT(refused(request, kThreeDims), HasSubstr("expected 18, got 6"));
  request.positions = std::vector<int32_t>(18, 99);
  EXPECT_TRUE(CheckPromptContent(request, kThreeDims).ok());
  request.positions[13] = 100;
  EXPECT_THAT(refused(request, kThreeDims), HasSubstr("[0, 100): got 100 at index 13"));
  request.positions[13] = -1;
  EXPECT_THAT(refused(request, kThreeDims), HasSubstr("got -1 at index 13"));
}

}  // namespace
}  // namespace reprise
