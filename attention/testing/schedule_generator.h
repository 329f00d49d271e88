// Random steps of a scheduler: sequences with lengths, and a shuffled block table with invalid IDs
// after the blocks of each sequence. Input for tests of batch builders.
//
//   Random random(seed);
//   const Schedule schedule = DrawSchedule({.max_seq_len = 300}, random);
//   BuildPagedBatch({.sequences = schedule.sequences, .table = schedule.table()}, buffers);
//
// Thread safety: const data after construction. Movable.

#ifndef REPRISE_ATTENTION_TESTING_SCHEDULE_GENERATOR_H_
#define REPRISE_ATTENTION_TESTING_SCHEDULE_GENERATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/metadata/batch_sequence.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/visible_set.h"

namespace reprise {

// Upper bounds of the lengths and sizes. Small values are drawn more often than large values.
struct ScheduleOptions {
  int max_rows = 8;
  int max_seq_len = 300;   // bound for all sequences; most are shorter
  int max_query_len = 40;  // most new tokens; sequences of new tokens only may be longer
  int max_block_size = 32;
};

struct Schedule {
  std::vector<BatchSequence> sequences;  // each has a separate table row, in any order
  std::vector<int32_t> entries;
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  int block_size = 1;
  int num_blocks = 1;  // blocks of the cache, including the null block

  BlockTableView table() const {
    return {.entries = entries.data(),
            .row_stride = row_stride,
            .num_tables = num_tables,
            .max_blocks = max_blocks,
            .block_size = block_size};
  }
  int num_rows() const { return static_cast<int>(sequences.size()); }
  int num_tokens() const;
  // Returns the cache slot of this token of the sequence.
  int64_t SlotOf(const BatchSequence& sequence, int64_t position) const;
  // Returns a text such as "block_size 4, rows (query_len/seq_len) 1/17 5/5".
  std::string Description() const;
};

// Draws a schedule. Some sequences have no query, and some have look-ahead blocks. All table
// entries after the blocks of a sequence are invalid IDs.
Schedule DrawSchedule(const ScheduleOptions& options, Random& random);

// Returns the pairs for which `sees` is true, for token i of each sequence, at position
// num_computed + i, and the first seq_len() tokens of the same sequence. Tokens are packed in the
// order of the sequences.
VisiblePairs SetByDefinition(
    const Schedule& schedule,
    absl::FunctionRef<bool(int64_t query_position, int64_t key_position)> sees);

// The batch of a schedule, with its buffers.
struct ScheduledBatchMemory {
  ScheduledBatchMemory(const Schedule& schedule, const PaddedSize& padded);

  BuiltBatch built;
  BatchBuilder builder;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SCHEDULE_GENERATOR_H_
