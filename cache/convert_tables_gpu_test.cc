#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <climits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "cache/block_table_formats.h"
#include "cache/convert_tables.h"
#include "cache/token_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr int kGarbage = -12345;

class ConvertTablesGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }

  static at::Tensor OnGpu(const std::vector<int32_t>& values) {
    return at::tensor(values, at::kInt).to(at::Device(at::kCUDA, 0));
  }
  static at::Tensor Empty(int64_t size) {
    return at::full({size}, kGarbage, at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kInt));
  }
  static std::vector<int32_t> Host(const at::Tensor& tensor) {
    const at::Tensor host = tensor.cpu();
    const int32_t* const data = host.const_data_ptr<int32_t>();
    return std::vector<int32_t>(data, data + host.numel());
  }
  static int32_t* Data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<int32_t>(); }
  static CUstream_st* Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }
};

TEST_F(ConvertTablesGpuTest, SmallAgreesWithTheHostOverRandomTables) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    const int num_rows = round == 0 ? 0 : round == 1 ? 600 : below(40);
    const int block_size = 1 + below(20), max_blocks = 1 + below(30),
              stride = max_blocks + below(3);
    const int max_tokens = max_blocks * block_size;
    std::vector<int32_t> entries(num_rows * stride + 1), lens(num_rows), requests(num_rows);
    for (int32_t& entry : entries) entry = below(1000);
    for (int32_t& len : lens) len = below(4) == 0 ? 0 : below(max_tokens + 1);
    for (int32_t& request : requests) request = below(std::max(num_rows, 1));

    // Packed.
    std::vector<int32_t> indptr(num_rows + 1), indices(num_rows * max_blocks, kGarbage),
        last(num_rows);
    ASSERT_TRUE(
        PackBlockTable({entries, stride, max_blocks, lens}, block_size,
                       {absl::MakeSpan(indptr), absl::MakeSpan(indices), absl::MakeSpan(last)})
            .ok());
    const at::Tensor table = OnGpu(entries), seq_lens = OnGpu(lens);
    const at::Tensor got_indptr = Empty(num_rows + 1), got_indices = Empty(num_rows * max_blocks),
                     got_last = Empty(num_rows);
    ASSERT_TRUE(LaunchPackBlockTable({.block_table = Data(table),
                                      .row_stride = stride,
                                      .num_tables = num_rows,
                                      .max_blocks = max_blocks,
                                      .seq_lens = Data(seq_lens),
                                      .num_rows = num_rows,
                                      .block_size = block_size,
                                      .block_indptr = Data(got_indptr),
                                      .block_indices = Data(got_indices),
                                      .last_block_len = Data(got_last),
                                      .max_indices = num_rows * max_blocks},
                                     Stream())
                    .ok());
    EXPECT_EQ(Host(got_indptr), indptr);
    EXPECT_EQ(Host(got_indices), indices);
    EXPECT_EQ(Host(got_last), last);

    // And padded again.
    std::vector<int32_t> padded(num_rows * stride + 1, kGarbage), padded_lens(num_rows);
    ASSERT_TRUE(
        UnpackBlockTable({indptr, indices, last}, block_size,
                         {absl::MakeSpan(padded), stride, max_blocks, absl::MakeSpan(padded_lens)})
            .ok());
    const at::Tensor got_table = Empty(num_rows * stride + 1), got_lens = Empty(num_rows);
    ASSERT_TRUE(LaunchUnpackBlockTable({.block_indptr = Data(got_indptr),
                                        .block_indices = Data(got_indices),
                                        .last_block_len = Data(got_last),
                                        .max_indices = num_rows * max_blocks,
                                        .num_rows = num_rows,
                                        .block_size = block_size,
                                        .block_table = Data(got_table),
                                        .row_stride = stride,
                                        .max_blocks = max_blocks,
                                        .seq_lens = Data(got_lens)},
                                       Stream())
                    .ok());
    EXPECT_EQ(Host(got_table), padded);
    EXPECT_EQ(Host(got_lens), padded_lens);

    // To tokens, and back for rows in another order.
    std::vector<int32_t> slots(num_rows * max_tokens + 1, kGarbage);
    ASSERT_TRUE(BlocksToTokens({entries, stride, max_blocks, lens}, block_size,
                               absl::MakeSpan(slots), max_tokens, max_tokens)
                    .ok());
    const at::Tensor got_slots = Empty(num_rows * max_tokens + 1);
    ASSERT_TRUE(LaunchBlocksToTokens({.block_table = Data(table),
                                      .row_stride = stride,
                                      .max_blocks = max_blocks,
                                      .seq_lens = Data(seq_lens),
                                      .num_rows = num_rows,
                                      .block_size = block_size,
                                      .slots = Data(got_slots),
                                      .slots_stride = max_tokens,
                                      .max_tokens = max_tokens},
                                     Stream())
                    .ok());
    EXPECT_EQ(Host(got_slots), slots);

    std::vector<int32_t> starts(num_rows), row_lens(num_rows);
    for (int row = 0; row < num_rows; ++row) {
      const int len = lens[requests[row]];
      starts[row] = len == 0 ? 0 : below(len) / block_size * block_size;
      row_lens[row] = len - starts[row];
    }
    std::vector<int32_t> back(num_rows * stride + 1, kGarbage), back_lens(num_rows);
    ASSERT_TRUE(
        TokensToBlocks({slots, max_tokens, max_tokens, num_rows}, {requests, row_lens, starts},
                       block_size,
                       {absl::MakeSpan(back), stride, max_blocks, absl::MakeSpan(back_lens)})
            .ok());
    const at::Tensor got_back = Empty(num_rows * stride + 1), got_back_lens = Empty(num_rows);
    const at::Tensor on_gpu[] = {OnGpu(requests), OnGpu(row_lens), OnGpu(starts)};
    ASSERT_TRUE(LaunchTokensToBlocks({.slots = Data(got_slots),
                                      .slots_stride = max_tokens,
                                      .num_requests = num_rows,
                                      .max_tokens = max_tokens,
                                      .requests = Data(on_gpu[0]),
                                      .lens = Data(on_gpu[1]),
                                      .starts = Data(on_gpu[2]),
                                      .num_rows = num_rows,
                                      .block_size = block_size,
                                      .block_table = Data(got_back),
                                      .row_stride = stride,
                                      .max_blocks = max_blocks,
                                      .seq_lens = Data(got_back_lens)},
                                     Stream())
                    .ok());
    EXPECT_EQ(Host(got_back), back);
    EXPECT_EQ(Host(got_back_lens), back_lens);
  }
}

// The device cannot refuse: what is wrong becomes short or empty rows, and nothing is read or
// written out of bounds.
TEST_F(ConvertTablesGpuTest, SmallWhatIsOutOfRangeIsClipped) {
  const at::Tensor table = OnGpu({7, 2, 5, 9});  // 2 rows of 2 blocks of 4
  const at::Tensor lens = OnGpu({100, -5, 3, 8}), rows = OnGpu({0, 1, 2, 1});
  const at::Tensor indptr = Empty(5), indices = Empty(4), last = Empty(4);
  PackTableParams pack = {.block_table = Data(table),
                          .row_stride = 2,
                          .num_tables = 2,
                          .max_blocks = 2,
                          .table_row = Data(rows),
                          .seq_lens = Data(lens),
                          .num_rows = 4,
                          .block_size = 4,
                          .block_indptr = Data(indptr),
                          .block_indices = Data(indices),
                          .last_block_len = Data(last),
                          .max_indices = 4};
  ASSERT_TRUE(LaunchPackBlockTable(pack, Stream()).ok());
  EXPECT_THAT(Host(indptr), ElementsAre(0, 2, 2, 2, 4));  // row 2 names no table
  EXPECT_THAT(Host(indices), ElementsAre(7, 2, 5, 9));
  EXPECT_THAT(Host(last), ElementsAre(4, 0, 0, 4));
  pack.max_indices = 3;  // no room for the last block
  indices.fill_(kGarbage);
  ASSERT_TRUE(LaunchPackBlockTable(pack, Stream()).ok());
  EXPECT_THAT(Host(indptr), ElementsAre(0, 2, 2, 2, 3));
  EXPECT_THAT(Host(indices), ElementsAre(7, 2, 5, kGarbage));
  EXPECT_THAT(Host(last), ElementsAre(4, 0, 0, 4));

  const at::Tensor bad_indptr = OnGpu({0, 3, 1, 2, 99}), bad_last = OnGpu({2, 1, 77, 1});
  const at::Tensor got_table = Empty(8), got_lens = Empty(4);
  ASSERT_TRUE(LaunchUnpackBlockTable({.block_indptr = Data(bad_indptr),
                                      .block_indices = Data(table),
                                      .last_block_len = Data(bad_last),
                                      .max_indices = 4,
                                      .num_rows = 4,
                                      .block_size = 4,
                                      .block_table = Data(got_table),
                                      .row_stride = 2,
                                      .max_blocks = 2,
                                      .seq_lens = Data(got_lens)},
                                     Stream())
                  .ok());
  EXPECT_THAT(Host(got_table), ElementsAre(7, 2, 0, 0, 2, 0, 0, 0));
  EXPECT_THAT(Host(got_lens), ElementsAre(8, 0, 4, 0));

  const at::Tensor slots = OnGpu({28, 29, 30, 31, 8, 9});  // one request of 6
  const at::Tensor requests = OnGpu({0, 1, -1, 0}), starts = OnGpu({0, 0, 0, 4}),
                   long_lens = OnGpu({INT_MAX, 4, 4, INT_MAX});
  ASSERT_TRUE(LaunchTokensToBlocks({.slots = Data(slots),
                                    .slots_stride = 6,
                                    .num_requests = 1,
                                    .max_tokens = 6,
                                    .requests = Data(requests),
                                    .lens = Data(long_lens),
                                    .starts = Data(starts),
                                    .num_rows = 4,
                                    .block_size = 4,
                                    .block_table = Data(got_table),
                                    .row_stride = 2,
                                    .max_blocks = 2,
                                    .seq_lens = Data(got_lens)},
                                   Stream())
                  .ok());
  EXPECT_THAT(Host(got_table), ElementsAre(7, 2, 0, 0, 0, 0, 2, 0));
  EXPECT_THAT(Host(got_lens), ElementsAre(6, 0, 0, 2));
}

}  // namespace
}  // namespace reprise
