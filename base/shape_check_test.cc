#include "reprise/base/shape_check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "gtest/gtest.h"

namespace reprise {
namespace {

at::Tensor Tensor(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::empty(shape, at::TensorOptions().dtype(dtype));
}

absl::Status Invalid(const char* message) { return absl::InvalidArgumentError(message); }

TEST(ShapeCheckTest, ANameIsBoundByTheFirstTensorThatHasIt) {
  ShapeChecker dims;
  ASSERT_TRUE(dims.Check("k", Tensor({17, 8, 64}), {"num_tokens", "num_kv_heads", 64}).ok());
  EXPECT_EQ(dims.size("num_tokens"), 17);
  EXPECT_EQ(dims.Check("slot_mapping", Tensor({16}, at::kLong), {"num_tokens"}, at::kLong),
            Invalid("slot_mapping must be [num_tokens] int64: expected [17], got [16]"));
}

TEST(ShapeCheckTest, ReportsTheDTypeThatItGot) {
  ShapeChecker dims;
  EXPECT_EQ(dims.Check("slot_mapping", Tensor({17}, at::kInt), {"num_tokens"}, at::kLong),
            Invalid("slot_mapping must be [num_tokens] int64: expected int64, got int32"));
}

TEST(ShapeCheckTest, AtLeastAcceptsLongerTensors) {
  ShapeChecker dims;
  dims.Bind("num_tokens", 4);
  EXPECT_TRUE(dims.Check("k", Tensor({9, 2}), {AtLeast("num_tokens"), AtLeast(2)}).ok());
  EXPECT_EQ(dims.Check("k", Tensor({3, 2}), {AtLeast("num_tokens"), 2}),
            Invalid("k must be [>= num_tokens, 2]: expected [>= 4, 2], got [3, 2]"));
}

TEST(ShapeCheckTest, AFailedCheckBindsNothing) {
  ShapeChecker dims;
  EXPECT_EQ(dims.Check("k", Tensor({5, 3}), {"num_tokens", 2}),
            Invalid("k must be [num_tokens, 2]: expected [num_tokens, 2], got [5, 3]"));
  EXPECT_FALSE(dims.Check("k", Tensor({6, 2}), {"num_tokens", 2}, at::kLong).ok());
  EXPECT_TRUE(dims.Check("k", Tensor({7, 2}), {"num_tokens", 2}).ok());
  EXPECT_EQ(dims.size("num_tokens"), 7);
}

TEST(ShapeCheckTest, NameMayOccurTwiceInOneShape) {
  ShapeChecker dims;
  EXPECT_TRUE(dims.Check("a", Tensor({3, 3}), {"n", "n"}).ok());
  EXPECT_EQ(ShapeChecker().Check("a", Tensor({3, 4}), {"n", "n"}),
            Invalid("a must be [n, n]: expected [n, n], got [3, 4]"));
}

TEST(ShapeCheckTest, ChecksTheNumberOfDimensions) {
  EXPECT_EQ(ShapeChecker().Check("k", Tensor({5}), {"num_tokens", 2}),
            Invalid("k must be [num_tokens, 2]: expected [num_tokens, 2], got [5]"));
  EXPECT_EQ(ShapeChecker().Check("scale", Tensor({1}), {}),
            Invalid("scale must be []: expected [], got [1]"));
}

TEST(ShapeCheckTest, RejectsUndefinedTensor) {
  EXPECT_EQ(ShapeChecker().Check("k", at::Tensor(), {"num_tokens"}),
            Invalid("k must be [num_tokens]: expected a tensor, got an undefined one"));
}

TEST(ShapeCheckTest, SizeZeroBindsANameLikeAnySize) {
  ShapeChecker dims;
  EXPECT_TRUE(dims.Check("k", Tensor({0, 2}), {"num_tokens", 2}).ok());
  EXPECT_EQ(dims.size("num_tokens"), 0);
  EXPECT_FALSE(dims.Check("v", Tensor({1, 2}), {"num_tokens", 2}).ok());
}

TEST(ShapeCheckDeathTest, DiesIfANameIsBoundToAnotherSize) {
  ShapeChecker dims;
  dims.Bind("num_tokens", 4);
  dims.Bind("num_tokens", 4);
  EXPECT_DEATH(dims.Bind("num_tokens", 5), "num_tokens is bound already");
  EXPECT_DEATH(dims.size("num_rows"), "num_rows is not bound");
}

TEST(CheckDTypeTest, NamesWhatIsAllowed) {
  EXPECT_TRUE(CheckDType("k", Tensor({1}, at::kHalf), {at::kHalf, at::kBFloat16}).ok());
  EXPECT_EQ(CheckDType("k", Tensor({1}), {at::kHalf, at::kBFloat16}),
            Invalid("k has the wrong dtype: expected float16 or bfloat16, got float32"));
}

TEST(CheckDeviceTest, NamesBothDevices) {
  EXPECT_TRUE(CheckDevice("k", Tensor({1}), at::kCPU).ok());
  EXPECT_EQ(CheckDevice("k", Tensor({1}), at::Device(at::kCUDA, 1)),
            Invalid("k has the wrong device: expected cuda:1, got cpu"));
}

TEST(CheckLastStrideIsOneTest, AcceptsSlicesAndRejectsTransposes) {
  const at::Tensor fused = Tensor({5, 3, 8});
  EXPECT_TRUE(CheckLastStrideIsOne("q", fused.narrow(2, 4, 4)).ok());
  EXPECT_EQ(CheckLastStrideIsOne("q", fused.transpose(1, 2)),
            Invalid("q must have stride 1 in its last dimension: expected 1, got 8"));
  EXPECT_TRUE(CheckLastStrideIsOne("q", fused.narrow(1, 0, 1).transpose(1, 2)).ok());
}

}  // namespace
}  // namespace reprise
