// The project's own model on a GPU.

#include <c10/cuda/CUDAFunctions.h>

#include <numeric>
#include <utility>
#include <vector>

#include "examples/decode/options.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "tests/golden/jargon_golden.h"

namespace reprise {
namespace {

class JargonGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    auto texts = LoadJargonTexts();
    ASSERT_TRUE(texts.ok()) << texts.status();
    texts_ = *std::move(texts);
    order_.resize(texts_.size());
    std::iota(order_.begin(), order_.end(), 0);
  }

  std::vector<JargonText> texts_;
  std::vector<int> order_;
};

TEST_F(JargonGpuTest, InFloat32ItWritesWhatTransformersWrites) {
  const nlohmann::json stats =
      ExpectJargonTexts({.dtype = DType::kFloat32, .device = DeviceChoice::kCuda}, texts_, order_);
  EXPECT_EQ(stats.at("eager_steps").at("query_too_long"), 0);  // the prompts are a mixed step
  EXPECT_GE(stats.at("graph_hits"), 96);  // one more is launched before the last token is known
}

TEST_F(JargonGpuTest, InBFloat16ItWritesTheSame) {
  // Without the prompt "The", whose text has choices so close that rounding decides them.
  std::vector<int> decided;
  for (const int i : order_) {
    if (texts_[i].prompt != "The") decided.push_back(i);
  }
  ASSERT_EQ(decided.size(), 15u);
  const nlohmann::json stats = ExpectJargonTexts(
      {.dtype = DType::kBFloat16, .device = DeviceChoice::kCuda}, texts_, decided);
  EXPECT_GE(stats.at("graph_hits"), 95);
}

}  // namespace
}  // namespace reprise
