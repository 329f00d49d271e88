#include "reprise/runner/ops/gather_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

class GatherRowsTest : public DeviceTest {
 protected:
  static at::Tensor Indices(const std::vector<int32_t>& values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(device());
  }
};

TEST_F(GatherRowsTest, CopiesRowsOfAnyTypeSizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kByte}) {
    for (int64_t size : {1, 3, 8, 64, 257, 4096, 9000}) {
      for (int64_t num_indices : {1, 2, 17, 300}) {
        if (num_indices * size > 1000000) continue;
        const int64_t gap = random() % 3 * 8;
        const at::Tensor wide =
            (RandomNormal(random, {50, size + gap}, at::kFloat) * 40).to(dtype).to(device());
        const at::Tensor table = wide.narrow(1, gap, size);
        std::vector<int32_t> rows(num_indices);
        for (int32_t& row : rows) row = random() % 50;
        const at::Tensor out =
            at::empty({num_indices, size + 1}, at::TensorOptions(device()).dtype(dtype))
                .narrow(1, 0, size);
        ASSERT_TRUE(GatherRows(table, Indices(rows), out).ok());
        EXPECT_TRUE(Equals(out, table.index_select(0, Indices(rows))))
            << dtype << " " << num_indices << " x " << size << " gap " << gap;
      }
    }
  }
}

TEST_F(GatherRowsTest, IndexOutOfRangeDoesNotReadTheTable) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor table = at::empty({4, 3}, options).fill_(7);
  for (int32_t index :
       {-1, 4, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    const at::Tensor out = at::empty({2, 3}, options).fill_(1);
    const absl::Status status = GatherRows(table, Indices({2, index}), out);
    if (device().is_cpu()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
      EXPECT_TRUE(Equals(out, at::empty({2, 3}, options).fill_(1)));  // untouched
    } else {
      EXPECT_TRUE(status.ok());
      EXPECT_EQ(out[0].min().item<float>(), 7);
      EXPECT_EQ(out[1].abs().max().item<float>(), 0);
    }
  }
}

TEST_F(GatherRowsTest, RowsOfOtherRanksAreZero) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor whole = at::arange(1, 31, options).view({10, 3});
  const at::Tensor out = at::empty({6, 3}, options).fill_(-1);
  const at::Tensor indices = Indices({0, 4, 6, 7, -1, std::numeric_limits<int32_t>::max()});
  ASSERT_TRUE(GatherSomeRows(whole.narrow(0, 4, 3), 4, indices, out).ok());
  EXPECT_TRUE(Equals(out[1], whole[4]));
  EXPECT_TRUE(Equals(out[2], whole[6]));
  for (const int row : {0, 3, 4, 5}) EXPECT_EQ(out[row].abs().max().item<float>(), 0) << row;
  EXPECT_EQ(GatherSomeRows(whole, -1, indices, out),
            absl::InvalidArgumentError("first_row must not be negative: expected >= 0, got -1"));
}

TEST_F(GatherRowsTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor table = at::empty({4, 3}, options);
  const at::Tensor indices = Indices({0, 1});
  EXPECT_EQ(GatherRows(table, indices, at::empty({2, 4}, options)),
            absl::InvalidArgumentError(
                "out must be [num_indices, size] float32: expected [2, 3], got [2, 4]"));
  EXPECT_EQ(
      GatherRows(table, indices.to(at::kLong), at::empty({2, 3}, options)),
      absl::InvalidArgumentError("indices must be [num_indices] int32: expected int32, got int64"));
  EXPECT_FALSE(
      GatherRows(table, Indices({0, 1, 2, 3}).slice(0, 0, 4, 2), at::empty({2, 3}, options)).ok());
  EXPECT_TRUE(GatherRows(table, Indices({}), at::empty({0, 3}, options)).ok());
}

TEST(GatherRowsHostTest, ReportsTheIndexOutOfRange) {
  const at::Tensor table = at::empty({4, 3});
  EXPECT_EQ(
      GatherRows(table, at::tensor({2, 9}, at::TensorOptions().dtype(at::kInt)), at::empty({2, 3})),
      absl::OutOfRangeError("indices must be rows of table: expected [0, 4), got 9 at 1"));
}

}  // namespace
}  // namespace reprise
