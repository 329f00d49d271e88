// What a scheduler says of one sequence in a step: the input of the builders of batches.

#ifndef ATTENTION_BATCH_SEQUENCE_H_
#define ATTENTION_BATCH_SEQUENCE_H_

#include <cstdint>
#include <type_traits>

namespace reprise {

struct BatchSequence {
  int table_row = 0;     // its row of the block table: the slot
  int num_computed = 0;  // tokens whose keys are in the cache before the step
  int query_len = 0;     // new tokens of the step; 0: the sequence sits this step out
  int key_start = 0;     // where its first token stands in the table row: behind an encoder's, say

  // Keys in the cache after the step's write.
  constexpr int64_t seq_len() const { return int64_t{num_computed} + query_len; }
};

// A batch of them is all that ranks of one model need from their scheduler: it may be sent as
// bytes, and each rank builds the same batch over its own table.
static_assert(std::is_trivially_copyable_v<BatchSequence>);

}  // namespace reprise

#endif  // ATTENTION_BATCH_SEQUENCE_H_
