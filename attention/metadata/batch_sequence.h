// One sequence of a step, as the scheduler describes it. Input of the batch builders.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_SEQUENCE_H_
#define REPRISE_ATTENTION_METADATA_BATCH_SEQUENCE_H_

#include <cstdint>
#include <type_traits>

namespace reprise {

struct BatchSequence {
  int table_row = 0;     // the sequence's row of the block table: the slot
  int num_computed = 0;  // tokens whose keys are in the cache before the step
  int query_len = 0;     // new tokens of the step; 0: the sequence skips this step
  int key_start = 0;     // index of the first token in the table row, e.g. after encoder tokens

  // Keys in the cache after the step's write.
  constexpr int64_t seq_len() const { return int64_t{num_computed} + query_len; }
};

// An array of BatchSequence is all that the ranks of a model need from their scheduler. It may be
// sent as bytes: each rank builds the same batch over its own table.
static_assert(std::is_trivially_copyable_v<BatchSequence>);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_SEQUENCE_H_
