#include "reprise/attention/metadata/cross_batch.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(CrossBatchTest, RowsAttendToTheEncoderKeysOfTheirSlots) {
  // Rows in slots 2 and 0, and a padded row.
  const int32_t loc[] = {0, 1, 4, 4};
  const int32_t lens[] = {9, 5, 0};
  const int32_t table_row[] = {2, 0, 0};
  const int32_t encoder_lens[] = {3, -99, 7};
  const int32_t entries[] = {4, 9, -1, -1, 8, 6};
  int32_t seq_lens[3] = {-77, -77, -77};
  CrossBatchArgs cross = {.rows = {.query_start_loc = loc,
                                   .seq_lens = lens,
                                   .table_row = table_row,
                                   .num_rows = 3,
                                   .num_tokens = 4,
                                   .max_query_len = 3},
                          .encoder_lens = encoder_lens,
                          .table = {.entries = entries,
                                    .row_stride = 2,
                                    .num_tables = 3,
                                    .max_blocks = 2,
                                    .block_size = 4},
                          .max_encoder_len = 8,
                          .seq_lens = seq_lens};
  const absl::StatusOr<PagedBatch> batch = BuildCrossBatch(cross);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(seq_lens, ElementsAre(7, 3, 0));
  EXPECT_FALSE(batch->causal);
  EXPECT_EQ(batch->query_start_loc, loc);
  EXPECT_EQ(batch->table_row, table_row);
  EXPECT_EQ(batch->block_table, entries);
  EXPECT_EQ(batch->max_seq_len, 8);
  EXPECT_EQ(batch->max_query_len, 3);

  const auto refusal = [&] {
    std::fill(std::begin(seq_lens), std::end(seq_lens), -77);
    const absl::Status status = BuildCrossBatch(cross).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(seq_lens, Each(-77));
    return std::string(status.message());
  };
  cross.max_encoder_len = 6;
  EXPECT_EQ(refusal(),
            "rows[0]: a length or a count is negative or too large: table row 2 of 3, encoder_len "
            "7, max_encoder_len 6");
  cross.max_encoder_len = 8;
  cross.table.num_tables = 2;
  EXPECT_EQ(refusal(), "rows[0]: its table row is not one of the table: table row 2 of 2");
}

TEST(CrossBatchTest, InvalidRowsHaveNoKeysAndAFault) {
  const int32_t lens[] = {1, 1, 1, 1, 0, 1};
  const int32_t table_row[] = {1, -1, 3, 2, 99, 0};
  const int32_t encoder_lens[] = {3, -1, 9};
  const int32_t entries[] = {4, 9, 5, 7, 8, 6};
  int32_t seq_lens[6], row_faults[6], num_faults = -77;
  const CrossBatchArgs args = {.rows = {.seq_lens = lens, .table_row = table_row, .num_rows = 6},
                               .encoder_lens = encoder_lens,
                               .table = {.entries = entries,
                                         .row_stride = 2,
                                         .num_tables = 3,
                                         .max_blocks = 2,
                                         .block_size = 4},
                               .max_encoder_len = 8,
                               .seq_lens = seq_lens,
                               .row_faults = row_faults,
                               .num_faults = &num_faults};
  CrossBatchOnHost(args);
  EXPECT_THAT(seq_lens, ElementsAre(0, 0, 0, 0, 0, 3));
  constexpr auto kLength = static_cast<int>(RowFault::kLength);
  constexpr auto kTableRow = static_cast<int>(RowFault::kTableRow);
  EXPECT_THAT(row_faults, ElementsAre(kLength, kTableRow, kTableRow, kLength, 0, 0));
  EXPECT_EQ(num_faults, 4);
}

// Encoder keys for each table row of a schedule.
struct Encoders {
  std::vector<int32_t> lens;  // by table row
  Schedule schedule;          // one sequence per table row; all tokens are new
};

Encoders DrawEncoders(int num_tables, Random& random) {
  Encoders encoders;
  do {
    encoders.schedule = DrawSchedule({.max_rows = 8, .max_seq_len = 120}, random);
  } while (encoders.schedule.num_tables < num_tables);
  encoders.lens.resize(encoders.schedule.num_tables);
  for (BatchSequence& sequence : encoders.schedule.sequences) {
    sequence = {.table_row = sequence.table_row,
                .num_computed = 0,
                .query_len = static_cast<int>(sequence.seq_len())};
    encoders.lens[sequence.table_row] = sequence.query_len;
  }
  return encoders;
}

TEST(CrossBatchTest, EveryQueryAttendsToAllKeysOfTheSequencesEncoder) {
  int64_t num_pairs = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule decoder = DrawSchedule({.max_rows = 5}, random);
    const Encoders encoders = DrawEncoders(decoder.num_tables, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << decoder.Description()
                                    << "; encoder " << encoders.schedule.Description());
    const ScheduledBatchMemory rows(decoder, {.num_rows = decoder.num_rows() + random.Int(0, 2),
                                              .num_tokens = decoder.num_tokens() + 3});
    std::vector<int32_t> seq_lens(rows.built.batch.num_rows, -77);
    const CrossBatchArgs cross = {
        .rows = rows.built.batch,
        .encoder_lens = encoders.lens.data(),
        .table = encoders.schedule.table(),
        .max_encoder_len = encoders.schedule.max_blocks * encoders.schedule.block_size,
        .seq_lens = seq_lens.data()};
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> batch = BuildCrossBatch(cross);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << batch.status();

    VisiblePairs expected;
    int token = 0;
    for (const BatchSequence& sequence : decoder.sequences) {
      const int length = encoders.lens[sequence.table_row];
      for (int i = 0; i < sequence.query_len; ++i, ++token) {
        for (int key = 0; key < length; ++key) {
          expected.push_back(
              {.token = token,
               .query_position = length - sequence.query_len + i,
               .key_position = key,
               .slot = encoders.schedule.SlotOf({.table_row = sequence.table_row}, key)});
        }
      }
    }
    ASSERT_EQ(
        DifferenceOf(VisibleSet(PlainLayer(), *batch, encoders.schedule.block_size), expected), "");
    num_pairs += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(num_pairs, 1000000);
}

// A batch of BatchBuilder gives the slots of the encoder's tokens.
TEST(CrossBatchTest, EncoderTokensGetSlotsFromAPagedBatch) {
  const int32_t entries[] = {4, 9, 8, 6};
  const BlockTableView table = {
      .entries = entries, .row_stride = 2, .num_tables = 2, .max_blocks = 2, .block_size = 4};
  absl::StatusOr<BatchBuilder> builder = BatchBuilder::Create({.max_rows = 2, .max_tokens = 8});
  const std::vector<BatchSequence> inputs = {{.table_row = 1, .query_len = 5},
                                             {.table_row = 0, .query_len = 2}};
  const absl::StatusOr<BuiltBatch> built = builder->Build({.sequences = inputs, .table = table});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(built->slot_mapping, ElementsAre(32, 33, 34, 35, 24, 16, 17));
}

// As in SGLang, one table holds the encoder's keys followed by the decoder's keys.
TEST(CrossBatchTest, EncoderAndDecoderKeysMayShareATable) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule whole = DrawSchedule({}, random);
    // The first part of each sequence holds the encoder's keys.
    std::vector<BatchSequence> sequences = whole.sequences;
    std::vector<int32_t> encoder_lens(whole.num_tables);
    for (BatchSequence& sequence : sequences) {
      sequence.key_start = random.Int(0, sequence.num_computed);
      sequence.num_computed -= sequence.key_start;
      encoder_lens[sequence.table_row] = sequence.key_start;
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << whole.Description());
    const PaddedSize padded = {.num_rows = whole.num_rows() + random.Int(0, 2),
                               .num_tokens = whole.num_tokens() + random.Int(0, 3)};
    absl::StatusOr<BatchBuilder> builder = BatchBuilder::Create({.max_rows = padded.num_rows,
                                                                 .max_tokens = padded.num_tokens,
                                                                 .key_starts = KeyStarts::kGiven});
    const absl::StatusOr<BuiltBatch> decoder =
        builder->Build({.sequences = sequences, .table = whole.table(), .padded = padded});
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    std::vector<int32_t> seq_lens(padded.num_rows, -77);
    const absl::StatusOr<PagedBatch> cross =
        BuildCrossBatch({.rows = decoder->batch,
                         .encoder_lens = encoder_lens.data(),
                         .table = whole.table(),
                         .max_encoder_len = whole.max_blocks * whole.block_size,
                         .seq_lens = seq_lens.data()});
    ASSERT_TRUE(cross.ok()) << cross.status();

    VisiblePairs expected_decoder;
    VisiblePairs expected_cross;
    int token = 0;
    for (const BatchSequence& sequence : sequences) {
      const int start = sequence.key_start;
      for (int i = 0; i < sequence.query_len; ++i, ++token) {
        const int position = sequence.num_computed + i;
        ASSERT_EQ(decoder->positions[token], position);
        ASSERT_EQ(decoder->slot_mapping[token], whole.SlotOf(sequence, start + position));
        for (int key = 0; key <= position; ++key) {
          expected_decoder.push_back({.token = token,
                                      .query_position = start + position,
                                      .key_position = start + key,
                                      .slot = whole.SlotOf(sequence, start + key)});
        }
        for (int key = 0; key < start; ++key) {
          expected_cross.push_back({.token = token,
                                    .query_position = start - sequence.query_len + i,
                                    .key_position = key,
                                    .slot = whole.SlotOf(sequence, key)});
        }
      }
    }
    ASSERT_EQ(
        DifferenceOf(VisibleSet(PlainLayer(), decoder->batch, whole.block_size), expected_decoder),
        "");
    ASSERT_EQ(DifferenceOf(VisibleSet(PlainLayer(), *cross, whole.block_size), expected_cross), "");
  }
}

}  // namespace
}  // namespace reprise
