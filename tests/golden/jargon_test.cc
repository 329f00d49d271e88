// The project's own model writes what transformers writes with it, text for text.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "examples/decode/options.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "tests/golden/jargon_golden.h"

namespace reprise {
namespace {

class JargonTest : public testing::Test {
 protected:
  void SetUp() override {
    auto texts = LoadJargonTexts();
    ASSERT_TRUE(texts.ok()) << texts.status();
    texts_ = *std::move(texts);
    ASSERT_EQ(texts_.size(), 16u);
  }

  nlohmann::json ExpectTexts(DecodeOptions options, const std::vector<int>& order) {
    options.device = DeviceChoice::kCpu;
    options.dtype = DType::kFloat32;
    return ExpectJargonTexts(options, texts_, order);
  }

  std::vector<int> InOrder() const {
    std::vector<int> order(texts_.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  std::vector<JargonText> texts_;
};

TEST_F(JargonTest, AsOneBatch) {
  const nlohmann::json stats = ExpectTexts({}, InOrder());
  EXPECT_EQ(stats.at("graph_hits"), 95);  // every step after the prompts'
  EXPECT_EQ(stats.at("steps"), 96);
}

TEST_F(JargonTest, InBFloat16TheSame) {
  std::vector<int> decided;
  for (const int i : InOrder()) {
    // The text after "The" has choices so close that rounding decides them.
    if (texts_[i].prompt != "The") decided.push_back(i);
  }
  ExpectJargonTexts({.dtype = DType::kBFloat16, .device = DeviceChoice::kCpu}, texts_, decided);
}

TEST_F(JargonTest, EachAlone) {
  for (const int i : InOrder()) ExpectTexts({}, {i});
}

TEST_F(JargonTest, WithoutGraphsInSmallBlocksAndChunks) {
  ExpectTexts({.engine = {.runner = {.cache = {.block_size = 1},
                                     .graphs = {.mode = GraphSetOptions::Mode::kOff}},
                          .scheduler = {.prefill_chunk = 3}}},
              InOrder());
  ExpectTexts(
      {.engine = {.runner = {.cache = {.block_size = 5}}, .scheduler = {.prefill_chunk = 1}}},
      InOrder());
}

TEST_F(JargonTest, InAnyOrderThroughACacheThatIsTooSmallForAll) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<int> order = InOrder();
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    const nlohmann::json stats =
        ExpectTexts({.engine = {.runner = {.cache = {.size = NumBlocks{40}}}}},
                    order);  // all 16 need 16 * 7 blocks
    EXPECT_GT(stats.at("preemptions"), 0);
  }
}

}  // namespace
}  // namespace reprise
