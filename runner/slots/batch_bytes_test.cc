#include "reprise/runner/slots/batch_bytes.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A batch with a value in every field.
class FullBatch {
 public:
  FullBatch() {
    batch_ = {.leaves = leaves_,
              .joins = joins_,
              .logits_requests = requests_,
              .updates = updates_,
              .swap_outs = swap_outs_,
              .swap_ins = swap_ins_,
              .copies = copies_,
              .encodes = encodes_,
              .rows = rows_,
              .embeddings = embeddings_,
              .idle = IdleStep::kRunModel};
  }
  const ScheduledBatch& operator*() const { return batch_; }

 private:
  const int32_t prompt_[3] = {5, 6, 7};
  const int32_t parents_[3] = {0, 0, 2};
  const int32_t positions_[7] = {10, 11, 12, -1, 20, 21, 22};
  const int32_t mask_[2] = {-1, 9};
  const int32_t source_[1] = {3};
  const LogitBias biases_[2] = {{.token = 4, .bias = -1.5f}, {.token = 9, .bias = 2.0f}};
  const SlotId leaves_[2] = {SlotId(1), SlotId(3)};
  const SlotJoin joins_[1] = {{.slot = SlotId(3),
                               .seq_len = 2,
                               .prompt_len = 5,
                               .sample_index = int64_t{1} << 40,
                               .sampling = {.temperature = 0.5f, .top_k = 7, .seed = ~uint64_t{0}},
                               .num_encoder_tokens = 1,
                               .encoder_is_cached = 1,
                               .position_delta = -4}};
  const LogitsRequest requests_[1] = {{.slot = SlotId(3),
                                       .params = {.presence_penalty = 0.25f, .num_biases = 2},
                                       .biases = biases_,
                                       .prompt = prompt_,
                                       .output = source_,
                                       .stages = 5}};
  const BlockTableUpdate updates_[2] = {
      {.slot = SlotId(3), .column = 1, .block = BlockId(8)},
      {.slot = SlotId(0), .column = 2, .block = BlockId(9), .group = 1}};
  const BlockCopy swap_outs_[1] = {{.src = 6, .dst = 1}};
  const BlockCopy swap_ins_[2] = {{.src = 1, .dst = 7}, {.src = 2, .dst = 8}};
  const BlockCopy copies_[1] = {{.src = 2, .dst = 4}};
  const ScheduledEncode encodes_[1] = {{.slot = SlotId(3), .tokens = source_}};
  const ScheduledRow rows_[5] = {
      {.slot = SlotId(3),
       .tokens = prompt_,
       .output = RowOutput::kNone,
       .logits = RowLogits::kAll,
       .next_token = 17,
       .positions = {.data = positions_, .dim_stride = 4, .num_dims = 2, .count = 3}},
      {.slot = SlotId(0), .allowed_tokens = mask_},
      {.slot = SlotId(2), .tokens = source_},
      {.slot = SlotId(4), .num_drafts = 5},
      {.slot = SlotId(5), .drafts = prompt_, .parents = parents_}};
  // Rows with gaps between them, and rows on a GPU.
  const float values_[7] = {1, 2, 3, -1, 4, 5, 6};
  const ScheduledEmbeddings embeddings_[2] = {
      {.row = 0,
       .first_token = 1,
       .rows = {.data = values_, .row_stride = 4, .num_rows = 2, .dim = 3}},
      {.row = 2,
       .rows = {.data = values_,
                .row_stride = 8,
                .num_rows = 1,
                .dim = 8,
                .dtype = DType::kBFloat16,
                .gpu = 3}}};
  ScheduledBatch batch_;
};

TEST(BatchBytesTest, RoundTripKeepsEveryField) {
  const FullBatch full;
  std::vector<std::byte> bytes;
  WriteBatch(*full, bytes);
  BatchReader reader;
  const auto read = reader.Read(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  const ScheduledBatch& batch = **read;
  EXPECT_THAT(batch.leaves, ElementsAre(SlotId(1), SlotId(3)));
  ASSERT_EQ(batch.joins.size(), 1);
  EXPECT_EQ(batch.joins[0].slot, SlotId(3));
  EXPECT_EQ(batch.joins[0].seq_len, 2);
  EXPECT_EQ(batch.joins[0].prompt_len, 5);
  EXPECT_EQ(batch.joins[0].sample_index, int64_t{1} << 40);
  EXPECT_EQ(batch.joins[0].sampling.temperature, 0.5f);
  EXPECT_EQ(batch.joins[0].sampling.top_k, 7);
  EXPECT_EQ(batch.joins[0].sampling.seed, ~uint64_t{0});
  EXPECT_EQ(batch.joins[0].num_encoder_tokens, 1);
  EXPECT_EQ(batch.joins[0].encoder_is_cached, 1);
  ASSERT_EQ(batch.logits_requests.size(), 1);
  const LogitsRequest& request = batch.logits_requests[0];
  EXPECT_EQ(request.slot, SlotId(3));
  EXPECT_EQ(request.params, (LogitsParams{.presence_penalty = 0.25f, .num_biases = 2}));
  EXPECT_THAT(request.biases, ElementsAre(LogitBias{4, -1.5f}, LogitBias{9, 2.0f}));
  EXPECT_THAT(request.prompt, ElementsAre(5, 6, 7));
  EXPECT_THAT(request.output, ElementsAre(3));
  EXPECT_EQ(request.stages, 5u);
  ASSERT_EQ(batch.updates.size(), 2);
  EXPECT_EQ(batch.updates[0].block, BlockId(8));
  EXPECT_EQ(batch.updates[1].group, 1);
  ASSERT_EQ(batch.swap_outs.size(), 1);
  EXPECT_EQ(batch.swap_outs[0].src, 6);
  ASSERT_EQ(batch.swap_ins.size(), 2);
  EXPECT_EQ(batch.swap_ins[1].dst, 8);
  ASSERT_EQ(batch.copies.size(), 1);
  EXPECT_EQ(batch.copies[0].src, 2);
  EXPECT_EQ(batch.copies[0].dst, 4);
  ASSERT_EQ(batch.encodes.size(), 1);
  EXPECT_EQ(batch.encodes[0].slot, SlotId(3));
  EXPECT_THAT(batch.encodes[0].tokens, ElementsAre(3));
  ASSERT_EQ(batch.rows.size(), 5);
  EXPECT_EQ(batch.rows[0].slot, SlotId(3));
  EXPECT_THAT(batch.rows[0].tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(batch.rows[0].output, RowOutput::kNone);
  EXPECT_EQ(batch.rows[0].logits, RowLogits::kAll);
  EXPECT_EQ(batch.rows[0].next_token, 17);
  const RowPositions& positions = batch.rows[0].positions;
  ASSERT_EQ(positions.count, 3);
  ASSERT_EQ(positions.num_dims, 2);
  EXPECT_THAT(absl::MakeConstSpan(positions.data, 3), ElementsAre(10, 11, 12));
  EXPECT_THAT(absl::MakeConstSpan(positions.data + positions.dim_stride, 3),
              ElementsAre(20, 21, 22));
  EXPECT_EQ(batch.rows[1].positions.count, 0);
  EXPECT_EQ(batch.joins[0].position_delta, -4);
  ASSERT_EQ(batch.embeddings.size(), 2);
  EXPECT_EQ(batch.embeddings[0].row, 0);
  EXPECT_EQ(batch.embeddings[0].first_token, 1);
  const EmbeddingRows& rows = batch.embeddings[0].rows;
  EXPECT_TRUE(CheckEmbeddingRows("rows", rows, {.dim = 3}).ok());
  ASSERT_EQ(rows.num_rows, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(absl::MakeConstSpan(static_cast<const float*>(rows.row(i)), 3),
                ElementsAre(1 + 3 * i, 2 + 3 * i, 3 + 3 * i));
  }
  EXPECT_EQ(batch.embeddings[1].row, 2);
  EXPECT_EQ(batch.embeddings[1].rows.gpu, 3);
  EXPECT_EQ(batch.embeddings[1].rows.dtype, DType::kBFloat16);
  EXPECT_EQ(batch.embeddings[1].rows.data, nullptr);  // after reading, no runner accepts these rows
  EXPECT_TRUE(batch.rows[1].tokens.empty());
  EXPECT_EQ(batch.rows[1].output, RowOutput::kToken);
  EXPECT_THAT(batch.rows[1].allowed_tokens, ElementsAre(-1, 9));
  EXPECT_EQ(batch.rows[1].draft_count(), 0);
  EXPECT_EQ(batch.rows[3].num_drafts, 5);
  EXPECT_TRUE(batch.rows[3].drafts.empty());
  EXPECT_EQ(batch.rows[3].query_len(), 6);
  EXPECT_EQ(batch.rows[4].num_drafts, 0);
  EXPECT_THAT(batch.rows[4].drafts, ElementsAre(5, 6, 7));
  EXPECT_TRUE(batch.rows[3].parents.empty());
  EXPECT_THAT(batch.rows[4].parents, ElementsAre(0, 0, 2));
  EXPECT_EQ(batch.rows[4].query_len(), 4);
  EXPECT_EQ(batch.idle, IdleStep::kRunModel);
}

TEST(BatchBytesTest, AnEmptyBatchIsABatch) {
  std::vector<std::byte> bytes(100);  // replaced
  WriteBatch({}, bytes);
  BatchReader reader;
  const auto read = reader.Read(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE((*read)->rows.empty());
  EXPECT_EQ((*read)->idle, IdleStep::kSkipModel);
}

TEST(BatchBytesTest, ReadReplacesThePreviousBatch) {
  const FullBatch full;
  std::vector<std::byte> bytes;
  WriteBatch(*full, bytes);
  BatchReader reader;
  ASSERT_TRUE(reader.Read(bytes).ok());
  std::vector<std::byte> nothing;
  WriteBatch({}, nothing);
  const auto read = reader.Read(nothing);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE((*read)->joins.empty());
  EXPECT_TRUE((*read)->rows.empty());
  EXPECT_TRUE((*read)->logits_requests.empty());
}

TEST(BatchBytesTest, RejectsTruncatedAndTrailingBytes) {
  const FullBatch full;
  std::vector<std::byte> bytes;
  WriteBatch(*full, bytes);
  BatchReader reader;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto read = reader.Read(absl::MakeConstSpan(bytes).first(size));
    ASSERT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  bytes.resize(bytes.size() + 8);
  EXPECT_THAT(reader.Read(bytes).status().message(), HasSubstr("8 bytes too many"));
}

TEST(BatchBytesTest, RejectsOtherBuildsAndUnknownEnumerators) {
  std::vector<std::byte> bytes;
  WriteBatch({}, bytes);
  BatchReader reader;
  std::vector<std::byte> other = bytes;
  other[0] ^= std::byte{1};
  EXPECT_THAT(reader.Read(other).status().message(), HasSubstr("no mark of this build"));
  other = bytes;
  other[other.size() - 8] = std::byte{77};  // idle
  EXPECT_THAT(reader.Read(other).status().message(), HasSubstr("an enumerator of 77"));
}

// Arbitrary bytes cause no reads beyond their end (asan) and no unbounded allocation.
TEST(BatchBytesTest, AnyBytesAreSafeToRead) {
  const FullBatch full;
  std::vector<std::byte> bytes;
  WriteBatch(*full, bytes);
  std::mt19937 rng(TestSeeds({7}).front());
  BatchReader reader;
  int num_read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> hostile = bytes;
    for (int n = 1 + rng() % 4; n > 0; --n) {
      // Some of the words are lengths: tests large values, and values close to the valid ones.
      const size_t word = rng() % (hostile.size() / 8) * 8;
      const uint64_t value = rng() % 2 == 0 ? rng() % 64 : ~uint64_t{0} >> rng() % 64;
      std::memcpy(hostile.data() + word, &value, sizeof(value));
    }
    const auto read = reader.Read(hostile);
    if (!read.ok()) continue;
    ++num_read;
    int64_t sum = 0;
    for (const ScheduledRow& row : (*read)->rows) {
      for (const int32_t token : row.tokens) sum += token;
      for (const int32_t word : row.allowed_tokens) sum += word;
      for (const int32_t draft : row.drafts) sum += draft;
      for (const int32_t parent : row.parents) sum += parent;
    }
    for (const ScheduledRow& row : (*read)->rows) {
      for (int dim = 0; row.positions.count > 0 && dim < row.positions.num_dims; ++dim) {
        const int32_t* of_dim = row.positions.data + dim * row.positions.dim_stride;
        for (int token = 0; token < row.positions.count; ++token) sum += of_dim[token] % 100;
      }
    }
    for (const ScheduledEmbeddings& range : (*read)->embeddings) {
      for (int row = 0; range.rows.data != nullptr && row < range.rows.num_rows; ++row) {
        const auto* data = static_cast<const unsigned char*>(range.rows.row(row));
        for (int i = 0; i < range.rows.dim * SizeOf(range.rows.dtype); ++i) sum += data[i];
      }
    }
    for (const LogitsRequest& request : (*read)->logits_requests) sum += request.biases.size();
    EXPECT_NE(sum, std::numeric_limits<int64_t>::min());
  }
  EXPECT_GT(num_read, 100);  // otherwise the test reads too few valid batches
}

TEST(BatchBytesTest, TheSteadyStateAllocatesNothing) {
  const FullBatch full;
  std::vector<std::byte> bytes;
  BatchReader reader;
  WriteBatch(*full, bytes);
  ASSERT_TRUE(reader.Read(bytes).ok());
  const AllocationCounter counter;
  WriteBatch(*full, bytes);
  ASSERT_TRUE(reader.Read(bytes).ok());
  EXPECT_EQ(counter.count(), 0);
}

}  // namespace
}  // namespace reprise
