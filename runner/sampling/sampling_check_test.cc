#include "reprise/runner/sampling/sampling_check.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

TEST(SamplingCheckTest, AcceptsTheWholeRangeOfEachField) {
  EXPECT_TRUE(CheckSampling({}).ok());
  for (const float temperature : {0.0f, -0.0f, kTiny, 1e30f, std::numeric_limits<float>::max()}) {
    EXPECT_TRUE(CheckSampling({.temperature = temperature}).ok()) << temperature;
  }
  for (const float top_p : {kTiny, 0.5f, 1.0f}) {
    EXPECT_TRUE(CheckSampling({.temperature = 1, .top_p = top_p}).ok()) << top_p;
  }
  for (const float min_p : {0.0f, -0.0f, kTiny, 0.5f, 1.0f}) {
    EXPECT_TRUE(CheckSampling({.temperature = 1, .min_p = min_p}).ok()) << min_p;
  }
  EXPECT_TRUE(CheckSampling({.top_k = std::numeric_limits<int32_t>::max()}).ok());
}

TEST(SamplingCheckTest, RejectsFieldsOutOfRangeByName) {
  const auto message = [](const SamplingParams& params) {
    const absl::Status status = CheckSampling(params);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const float temperature : {-kTiny, -1.0f, kInfinity, -kInfinity, kNan, -kNan}) {
    EXPECT_THAT(message({.temperature = temperature}), HasSubstr("temperature must be"));
  }
  for (const float top_p : {0.0f, -0.0f, -0.5f, 1.0000001f, kInfinity, -kInfinity, kNan}) {
    EXPECT_THAT(message({.top_p = top_p}), HasSubstr("top_p must be in (0, 1]"));
  }
  for (const float min_p : {-kTiny, -0.5f, 1.0000001f, kInfinity, -kInfinity, kNan}) {
    EXPECT_THAT(message({.min_p = min_p}), HasSubstr("min_p must be in [0, 1]"));
  }
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top_k must be at least 0: got -1"));
  EXPECT_THAT(message({.top_k = std::numeric_limits<int32_t>::min()}), HasSubstr("top_k"));
}

}  // namespace
}  // namespace reprise
