#include "reprise/attention/plan_inputs.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor Ints(std::vector<int> values) { return at::tensor(values, at::kInt); }

// Three rows with 6, 0 and 8 keys; block_size 4.
PlanInputs Padded() {
  return {.seq_lens = Ints({6, 0, 8}), .block_table = Ints({7, 2, -5, -5, 5, 9}).view({3, 2})};
}
PlanInputs Packed() {
  return {.block_indptr = Ints({0, 2, 2, 4}),
          .block_indices = Ints({7, 2, 5, 9}),
          .last_block_len = Ints({2, 0, 4})};
}

class PlanInputsTest : public ::testing::Test {
 protected:
  std::string Refusal(const PlanInputs& inputs) const {
    return std::string(space_.Check(inputs, at::kCPU).status().message());
  }

  PagedBatch Copied(const PlanInputs& inputs) {
    const absl::StatusOr<PlanShape> shape = space_.Check(inputs, at::kCPU);
    EXPECT_TRUE(shape.ok()) << shape.status();
    const absl::Status copied = space_.Copy(inputs, *shape, memory_, nullptr);
    EXPECT_TRUE(copied.ok()) << copied;
    return space_.BatchOf(*shape, memory_);
  }

  const PlanInputSpace space_{{.max_rows = 4,
                               .max_tokens = 9,
                               .max_query_len = 4,
                               .max_seq_len = 12,
                               .block_size = 4,
                               .max_block_indices = 5}};
  at::Tensor memory_ = at::full({space_.num_bytes()}, 0x7f, at::kByte);
};

std::vector<int> Row(const PagedBatch& batch, int row, int columns) {
  const int32_t* const begin = batch.block_table + row * batch.block_table_stride;
  return {begin, begin + columns};
}

TEST_F(PlanInputsTest, PaddedAndPackedTablesBecomeTheSameBatch) {
  for (const PlanInputs& inputs : {Padded(), Packed()}) {
    memory_.fill_(0x7f);
    const PagedBatch batch = Copied(inputs);
    EXPECT_EQ(batch.num_rows, 3);
    EXPECT_EQ(batch.num_tokens, 3);
    EXPECT_EQ(batch.max_query_len, 4);
    EXPECT_EQ(batch.max_seq_len, 12);
    EXPECT_EQ(batch.max_blocks, 3);
    EXPECT_THAT(std::vector<int>(batch.seq_lens, batch.seq_lens + 3), ElementsAre(6, 0, 8));
    EXPECT_THAT(std::vector<int>(batch.query_start_loc, batch.query_start_loc + 4),
                ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(Row(batch, 0, 2), ElementsAre(7, 2));
    EXPECT_THAT(Row(batch, 2, 2), ElementsAre(5, 9));
  }
}

TEST_F(PlanInputsTest, HasOneQueryPerRowWithoutQueryStartLoc) {
  PlanInputs inputs = Padded();
  inputs.query_start_loc = Ints({0, 4, 4, 6});
  EXPECT_EQ(space_.Check(inputs, at::kCPU)->num_tokens, 6);
  inputs.num_tokens = 9;  // tokens that belong to no row
  EXPECT_EQ(space_.Check(inputs, at::kCPU)->num_tokens, 9);
  EXPECT_THAT(std::vector<int>(Copied(inputs).query_start_loc, Copied(inputs).query_start_loc + 4),
              ElementsAre(0, 4, 4, 6));
  inputs.num_tokens = 5;
  EXPECT_EQ(Refusal(inputs), "num_tokens must hold all queries: expected at least 6, got 5");
}

TEST_F(PlanInputsTest, CopiesDoNotFollowTheCallersArrays) {
  const PlanInputs inputs = Padded();
  const PagedBatch batch = Copied(inputs);
  inputs.seq_lens->fill_(99);
  inputs.block_table->fill_(99);
  EXPECT_EQ(batch.seq_lens[0], 6);
  EXPECT_EQ(batch.block_table[0], 7);
}

TEST_F(PlanInputsTest, AcceptsStridedArrays) {
  PlanInputs inputs = Padded();
  inputs.seq_lens = at::tensor({6, -1, 0, -1, 8, -1}, at::kInt).slice(0, 0, 6, 2);
  inputs.block_table = inputs.block_table->t().contiguous().t();
  const PagedBatch batch = Copied(inputs);
  EXPECT_THAT(std::vector<int>(batch.seq_lens, batch.seq_lens + 3), ElementsAre(6, 0, 8));
  EXPECT_THAT(Row(batch, 2, 2), ElementsAre(5, 9));
}

TEST_F(PlanInputsTest, CopiesMasksAndGivesOtherRowsNoOffset) {
  const PlanInputSpace space({.max_rows = 4,
                              .max_tokens = 9,
                              .max_query_len = 4,
                              .max_seq_len = 12,
                              .block_size = 4,
                              .max_custom_mask_bytes = 5});
  at::Tensor memory = at::full({space.num_bytes()}, 0x7f, at::kByte);
  const auto copied = [&](const PlanInputs& inputs) {
    const absl::StatusOr<PlanShape> shape = space.Check(inputs, at::kCPU);
    EXPECT_TRUE(shape.ok()) << shape.status();
    EXPECT_TRUE(space.Copy(inputs, *shape, memory, nullptr).ok());
    return space.BatchOf(*shape, memory);
  };
  PlanInputs inputs = Padded();
  inputs.custom_mask = at::tensor({9, 8, 7}, at::kByte);
  inputs.custom_mask_offset = at::tensor({0, -1, 1}, at::kLong);
  PagedBatch batch = copied(inputs);
  EXPECT_EQ(batch.custom_mask_bytes, 5);
  EXPECT_EQ(std::vector<int>(batch.custom_mask, batch.custom_mask + 3), (std::vector{9, 8, 7}));
  EXPECT_EQ(std::vector<int64_t>(batch.custom_mask_offset, batch.custom_mask_offset + 3),
            (std::vector<int64_t>{0, -1, 1}));
  batch = copied(Padded());
  EXPECT_EQ(std::vector<int64_t>(batch.custom_mask_offset, batch.custom_mask_offset + 3),
            std::vector<int64_t>(3, -1));
  EXPECT_EQ(Copied(Padded()).custom_mask, nullptr) << "no room for masks";
}

TEST_F(PlanInputsTest, RejectsInvalidMasks) {
  const PlanInputSpace space({.max_rows = 4,
                              .max_tokens = 9,
                              .max_query_len = 4,
                              .max_seq_len = 12,
                              .block_size = 4,
                              .max_custom_mask_bytes = 5});
  const auto refusal = [&](const std::optional<at::Tensor>& mask,
                           const std::optional<at::Tensor>& offset) {
    PlanInputs inputs = Padded();
    inputs.custom_mask = mask;
    inputs.custom_mask_offset = offset;
    return std::string(space.Check(inputs, at::kCPU).status().message());
  };
  const at::Tensor mask = at::zeros({5}, at::kByte);
  const at::Tensor offset = at::zeros({3}, at::kLong);
  EXPECT_EQ(refusal(mask, offset), "");
  EXPECT_THAT(refusal(mask, std::nullopt), HasSubstr("got custom_mask alone"));
  EXPECT_THAT(refusal(std::nullopt, offset), HasSubstr("got custom_mask_offset alone"));
  EXPECT_THAT(
      refusal(at::zeros({6}, at::kByte), offset),
      HasSubstr("custom_mask's bytes must fit the planned capacity: expected 0 to 5, got 6"));
  EXPECT_THAT(refusal(mask.to(at::kInt), offset), HasSubstr("custom_mask"));
  EXPECT_THAT(refusal(mask, offset.to(at::kInt)), HasSubstr("custom_mask_offset"));
  EXPECT_THAT(refusal(mask, at::tensor({0, 6, 0}, at::kLong)),
              HasSubstr("custom_mask_offset[1]: expected -1 to 5, got 6"));
  EXPECT_THAT(refusal(mask, at::tensor({-2, 0, 0}, at::kLong)), HasSubstr("got -2"));
  PlanInputs inputs = Padded();
  inputs.custom_mask = at::zeros({1}, at::kByte);
  inputs.custom_mask_offset = offset;
  EXPECT_THAT(Refusal(inputs), HasSubstr("expected 0 to 0, got 1")) << "no room for masks";
}

TEST_F(PlanInputsTest, AcceptsABatchWithoutRows) {
  const PagedBatch batch = Copied({.seq_lens = Ints({}), .block_table = Ints({}).view({0, 2})});
  EXPECT_EQ(batch.num_rows, 0);
  EXPECT_EQ(batch.query_start_loc[0], 0);
}

TEST_F(PlanInputsTest, RequiresACompletePaddedOrPackedTable) {
  EXPECT_THAT(Refusal({}), HasSubstr("got nothing"));
  EXPECT_THAT(Refusal({.seq_lens = Ints({1})}), HasSubstr("got seq_lens"));
  PlanInputs both = Packed();
  both.seq_lens = Ints({6, 0, 8});
  EXPECT_THAT(Refusal(both),
              HasSubstr("got seq_lens, block_indptr, block_indices, last_block_len"));
}

TEST_F(PlanInputsTest, RejectsInputsBeyondTheCapacities) {
  PlanInputs inputs = Padded();
  inputs.block_table = at::full({3, 4}, 1, at::kInt);
  EXPECT_EQ(Refusal(inputs),
            "block_table's columns must fit the planned capacity: expected 0 to 3, got 4");
  // Rows that share blocks list them once per row.
  inputs = {.block_indptr = Ints({0, 3, 6}),
            .block_indices = Ints({1, 2, 3, 1, 2, 3}),
            .last_block_len = Ints({4, 4})};
  EXPECT_EQ(Refusal(inputs), "block_indices must fit the planned capacity: expected 0 to 5, got 6");
  inputs = {.seq_lens = Ints({1, 1, 1, 1, 1}), .block_table = at::full({5, 1}, 1, at::kInt)};
  EXPECT_EQ(Refusal(inputs), "num_rows must fit the planned capacity: expected 0 to 4, got 5");
  inputs = Padded();
  inputs.num_tokens = 10;
  EXPECT_EQ(Refusal(inputs), "num_tokens must fit the planned capacity: expected 0 to 9, got 10");
}

TEST_F(PlanInputsTest, RejectsInvalidLengthsOnTheHost) {
  PlanInputs inputs = Padded();
  inputs.seq_lens = Ints({6, 0, 9});
  EXPECT_EQ(Refusal(inputs), "seq_lens[2]: expected 0 to 8, got 9");
  inputs.seq_lens = Ints({6, -1, 8});
  EXPECT_EQ(Refusal(inputs), "seq_lens[1]: expected 0 to 8, got -1");
  inputs = Padded();
  inputs.query_start_loc = Ints({0, 5, 5, 6});
  EXPECT_EQ(Refusal(inputs), "query_start_loc[1]: expected 0 to 4, got 5");
  inputs.query_start_loc = Ints({0, 2, 1, 2});
  EXPECT_EQ(Refusal(inputs), "query_start_loc[2]: expected 2 to 6, got 1");
  inputs.query_start_loc = Ints({1, 2, 3, 4});
  EXPECT_EQ(Refusal(inputs), "query_start_loc[0]: expected 0 to 0, got 1");
}

TEST_F(PlanInputsTest, RejectsInvalidPackedTablesOnTheHostBeforeCopying) {
  PlanInputs inputs = Packed();
  inputs.last_block_len = Ints({5, 0, 4});
  const absl::StatusOr<PlanShape> shape = space_.Check(inputs, at::kCPU);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(space_.Copy(inputs, *shape, memory_, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(space_.BatchOf(*shape, memory_).seq_lens[0], 0x7f7f7f7f);
}

TEST_F(PlanInputsTest, RejectsWrongShapesAndTypesByName) {
  PlanInputs inputs = Padded();
  inputs.seq_lens = inputs.seq_lens->to(at::kLong);
  EXPECT_THAT(Refusal(inputs), HasSubstr("seq_lens must be [num_rows] int32"));
  inputs = Padded();
  inputs.block_table = at::full({2, 2}, 1, at::kInt);
  EXPECT_THAT(Refusal(inputs), HasSubstr("expected [3, columns], got [2, 2]"));
  inputs = Packed();
  inputs.block_indptr = Ints({0, 2, 4});
  EXPECT_THAT(Refusal(inputs), HasSubstr("block_indptr must be [4] int32"));
}

TEST_F(PlanInputsTest, NamesTheFirstInputOnTheHost) {
  EXPECT_STREQ(FirstInputOnHost(Padded()), "seq_lens");
  EXPECT_STREQ(FirstInputOnHost(Packed()), "block_indptr");
  EXPECT_EQ(FirstInputOnHost({}), nullptr);
}

}  // namespace
}  // namespace reprise
