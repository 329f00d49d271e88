#include "reprise/base/catch_all.h"

#include <new>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

TEST(CatchAllTest, ReturnsTheResultOfTheBody) {
  EXPECT_TRUE(CatchAll([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchAll([] { return absl::NotFoundError("x"); }), absl::NotFoundError("x"));
}

TEST(CatchAllTest, ConvertsExceptionsOfTheStandardLibrary) {
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::out_of_range("far out"); }),
            absl::InternalError("far out"));
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::bad_alloc(); }),
            absl::ResourceExhaustedError("host memory ran out"));
}

TEST(CatchAllTest, ConvertsThrownObjectsThatAreNotStdExceptions) {
  const absl::Status expected = absl::InternalError("threw something that is not a std::exception");
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw 5; }), expected);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw "text"; }), expected);
}

TEST(CatchAllTest, PassesValuesOfABodyThatReturnsStatusOr) {
  EXPECT_EQ(*CatchAll([]() -> absl::StatusOr<std::string> { return "value"; }), "value");
  EXPECT_EQ(CatchAll([]() -> absl::StatusOr<int> { return absl::AbortedError("y"); }).status(),
            absl::AbortedError("y"));
  EXPECT_EQ(CatchAll([]() -> absl::StatusOr<int> { throw std::logic_error("z"); }).status(),
            absl::InternalError("z"));
}

TEST(CallUserTest, NamesTheFunctionThatThrew) {
  EXPECT_EQ(CallUser("Clock()", [] { throw std::out_of_range("far out"); }),
            absl::InternalError("Clock() threw an exception: far out"));
  EXPECT_EQ(CallUser("Clock()", [] { throw std::bad_alloc(); }),
            absl::ResourceExhaustedError("Clock() threw an exception: host memory ran out"));
  EXPECT_EQ(CallUser("Clock()", [] { throw 5; }),
            absl::InternalError("Clock() threw something that is not a std::exception"));
}

TEST(CallUserTest, DoesNotAllocateIfNothingIsThrown) {
  int num_calls = 0;
  const AllocationCounter counter;
  EXPECT_TRUE(CallUser("Count()", [&] { ++num_calls; }).ok());
  EXPECT_EQ(counter.count(), 0);
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
}  // namespace reprise
