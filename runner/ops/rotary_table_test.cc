#include "reprise/runner/ops/rotary_table.h"

#include <ATen/TensorOperators.h>
#include <c10/core/DeviceType.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(RotaryTableTest, HoldsCosinesThenSines) {
  const std::vector<float> frequencies = {1.0f, 0.25f};
  absl::StatusOr<at::Tensor> table = MakeRotaryTable(frequencies, 5, 1.0f, at::kCPU);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->sizes(), (std::vector<int64_t>{5, 4}));
  for (int position = 0; position < 5; ++position) {
    const float* row = table->const_data_ptr<float>() + position * 4;
    EXPECT_FLOAT_EQ(row[0], std::cos(1.0 * position));
    EXPECT_FLOAT_EQ(row[1], std::cos(0.25 * position));
    EXPECT_FLOAT_EQ(row[2], std::sin(1.0 * position));
    EXPECT_FLOAT_EQ(row[3], std::sin(0.25 * position));
  }
}

TEST(RotaryTableTest, ScalesByTheAttentionFactor) {
  const std::vector<float> frequencies = {0.5f};
  const at::Tensor plain = *MakeRotaryTable(frequencies, 3, 1.0f, at::kCPU);
  const at::Tensor scaled = *MakeRotaryTable(frequencies, 3, 2.0f, at::kCPU);
  EXPECT_TRUE(scaled.equal(plain * 2));
}

TEST(RotaryTableTest, AnglesAreFloat32ProductsAtLargePositions) {
  const float frequency = 0.7498942f;  // 10000^(-2 / 64)
  const int position = 131071;
  const std::vector<float> frequencies = {frequency};
  const at::Tensor table = *MakeRotaryTable(frequencies, position + 1, 1.0f, at::kCPU);
  const double angle = static_cast<float>(position) * frequency;  // rounded to 2^-7 out here
  EXPECT_FLOAT_EQ(table[position][0].item<float>(), std::cos(angle));
}

TEST(RotaryTableTest, NamesTheArgumentThatIsWrong) {
  const std::vector<float> frequencies = {1.0f};
  EXPECT_FALSE(MakeRotaryTable({}, 4, 1.0f, at::kCPU).ok());
  EXPECT_EQ(MakeRotaryTable(frequencies, 0, 1.0f, at::kCPU).status(),
            absl::InvalidArgumentError("max_positions must be positive: expected >= 1, got 0"));
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(MakeRotaryTable(frequencies, 4, infinity, at::kCPU).ok());
  EXPECT_EQ(MakeRotaryTable({infinity}, 4, 1.0f, at::kCPU).status(),
            absl::InvalidArgumentError("inverse_frequencies must be finite: got inf"));
}

}  // namespace
}  // namespace reprise
