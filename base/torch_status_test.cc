#include "reprise/base/torch_status.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <new>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CatchTorchTest, ReturnsTheResultOfTheBody) {
  EXPECT_TRUE(CatchTorch([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchTorch([] { return absl::NotFoundError("x"); }), absl::NotFoundError("x"));
}

TEST(CatchTorchTest, AnErrorOfAnOperatorBecomesInternalWithoutABacktrace) {
  absl::Status status = CatchTorch([] {
    at::ones({2, 3}).matmul(at::ones({2, 3}));
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2x3"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("frame #")));
}

TEST(CatchTorchTest, MemoryThatRunsOutIsResourceExhausted) {
  absl::Status status = CatchTorch([] {
    at::empty({int64_t{1} << 58});  // 2^60 bytes: more than a process can map
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(CatchTorch([]() -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(CatchTorchTest, AMissingKernelIsUnimplemented) {
  absl::Status status =
      CatchTorch([]() -> absl::Status { C10_THROW_ERROR(NotImplementedError, "no such kernel"); });
  EXPECT_EQ(status, absl::UnimplementedError("no such kernel"));
}

TEST(CatchTorchTest, ExceptionsOfTheStandardLibraryDoNotEscape) {
  EXPECT_EQ(CatchTorch([]() -> absl::Status { throw std::out_of_range("far out"); }),
            absl::InternalError("far out"));
}

TEST(CatchTorchTest, ConvertsThrownObjectThatIsNotAStdException) {
  EXPECT_EQ(CatchTorch([]() -> absl::Status { throw 5; }),
            absl::InternalError("threw something that is not a std::exception"));
}

TEST(CatchTorchOrTest, PassesValuesStatusesAndExceptions) {
  absl::StatusOr<at::Tensor> tensor =
      CatchTorchOr([]() -> absl::StatusOr<at::Tensor> { return at::ones({3}); });
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->numel(), 3);

  EXPECT_EQ(CatchTorchOr([]() -> absl::StatusOr<int> { return absl::AbortedError("y"); }).status(),
            absl::AbortedError("y"));
  EXPECT_EQ(CatchTorchOr([]() -> absl::StatusOr<int> { throw std::logic_error("z"); }).status(),
            absl::InternalError("z"));
}

}  // namespace
}  // namespace reprise
