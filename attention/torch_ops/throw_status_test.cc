#include "reprise/attention/torch_ops/throw_status.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise {
namespace {

template <typename Exception>
std::string TextOf(const absl::Status& status) {
  try {
    ThrowIfError(status);
  } catch (const Exception& e) {
    return e.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(ThrowStatusTest, OkThrowsNothing) { EXPECT_NO_THROW(ThrowIfError(absl::OkStatus())); }

TEST(ThrowStatusTest, EachCodeMapsToAPythonException) {
  EXPECT_EQ(TextOf<c10::ValueError>(absl::InvalidArgumentError("k: expected 1, got 2")),
            "k: expected 1, got 2");
  EXPECT_EQ(TextOf<c10::NotImplementedError>(absl::UnimplementedError("no such kernel")),
            "no such kernel");
  EXPECT_EQ(TextOf<c10::OutOfMemoryError>(absl::ResourceExhaustedError("8 GB are not there")),
            "8 GB are not there");
  EXPECT_EQ(TextOf<c10::Error>(absl::InternalError("launch failed")), "launch failed");
}

}  // namespace
}  // namespace reprise
