// GEMMs of two processes that share a choice file.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

constexpr char kChoicesVariable[] = "REPRISE_TEST_CHOICES";
constexpr char kBitsVariable[] = "REPRISE_TEST_BITS";
constexpr int64_t kRows[] = {1, 8, 16, 32, 48, 100};

// Returns [rows, columns] bfloat16 on the device, equal in each process.
at::Tensor Values(int64_t rows, int64_t columns, double step) {
  return at::arange(rows * columns, at::TensorOptions(c10::kCUDA).dtype(at::kDouble))
      .mul(step)
      .sin()
      .view({rows, columns})
      .to(at::kBFloat16);
}

struct Products {
  std::vector<LinearChoice> choices;
  std::string bits;  // bytes of the results
};

Products Multiply(const std::string& file) {
  auto context = MakeLinearContext(c10::Device(c10::kCUDA, 0), {.choices_file = file});
  EXPECT_TRUE(context.ok()) << context.status();
  Products products;
  for (const int64_t in_features : {2048, 4096}) {
    const Linear linear = *Linear::Create(Values(4096, in_features, 0.7), std::nullopt);
    for (const int64_t num_rows : kRows) {
      const at::Tensor out =
          at::empty({num_rows, 4096}, at::TensorOptions(c10::kCUDA).dtype(at::kBFloat16));
      EXPECT_TRUE(linear.Apply(**context, Values(num_rows, in_features, 0.3), out).ok());
      const at::Tensor host = out.cpu();
      products.bits.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
    }
  }
  products.choices = (*context)->Choices();
  return products;
}

class LinearChoicesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    path_ = absl::StrCat(testing::TempDir(), "/linear_choices_test.", getpid());
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string path_;  // per process, because shards of a test run need separate files
};

// A helper: the next test runs it in a child process.
TEST_F(LinearChoicesTest, OfAnotherProcess) {
  const char* const choices = std::getenv(kChoicesVariable);
  const char* const bits = std::getenv(kBitsVariable);
  if (choices == nullptr || bits == nullptr) GTEST_SKIP() << "only runs in a child process";
  const Products products = Multiply(choices);
  for (const LinearChoice& choice : products.choices) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kRemembered) << ToString(choice);
  }
  std::ofstream(bits, std::ios::binary) << products.bits;
}

TEST_F(LinearChoicesTest, ProcessesThatShareAFileMatchBitwise) {
  const Products first = Multiply(path_);
  ASSERT_EQ(first.choices.size(), 2 * std::size(kRows));
  for (const LinearChoice& choice : first.choices) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kTimed) << ToString(choice);
  }
  const std::string bits_path = path_ + ".bits";
  const pid_t child = fork();
  if (child == 0) {
    // A new program, which does not reuse the device state of this process.
    setenv(kChoicesVariable, path_.c_str(), 1);
    setenv(kBitsVariable, bits_path.c_str(), 1);
    // With sharding, the shard might exclude the only test case.
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    execl("/proc/self/exe", "test", "--gtest_filter=LinearChoicesTest.OfAnotherProcess",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  std::ifstream file(bits_path, std::ios::binary);
  const std::string bits((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::filesystem::remove(bits_path);
  ASSERT_EQ(bits.size(), first.bits.size());
  EXPECT_TRUE(bits == first.bits);
}

TEST_F(LinearChoicesTest, ADamagedFileIsIgnoredAndReplaced) {
  std::ofstream(path_) << "anything";
  const Products first = Multiply(path_);
  for (const LinearChoice& choice : first.choices) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kTimed) << ToString(choice);
  }
  const Products second = Multiply(path_);
  for (const LinearChoice& choice : second.choices) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kRemembered) << ToString(choice);
    EXPECT_THAT(ToString(choice), testing::HasSubstr("remembered"));
  }
  EXPECT_TRUE(second.bits == first.bits);
}

TEST_F(LinearChoicesTest, UnwritableFileDoesNotAffectResults) {
  const Products products = Multiply("/proc/no_such_folder/choices");
  EXPECT_EQ(products.choices.size(), 2 * std::size(kRows));
  for (const LinearChoice& choice : products.choices) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kTimed) << ToString(choice);
  }
}

}  // namespace
}  // namespace reprise
