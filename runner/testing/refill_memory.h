// Memory of a refill for its tests: slots, step arrays and a delta in one piece, on the host or on
// a device, and random deltas, most of them hostile.
//
//   RefillMemory memory(shape);
//   memory.PoisonArrays();
//   RandomDelta(random, shape, 0.1, memory.args());
//   RefillOnHost(memory.args());

#ifndef REPRISE_RUNNER_TESTING_REFILL_MEMORY_H_
#define REPRISE_RUNNER_TESTING_REFILL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "reprise/runner/slots/refill_args.h"

namespace reprise {

struct RefillShape {
  int num_slots = 8;
  int max_blocks = 6;
  int block_size = 4;
  int num_blocks = 40;
  int max_rows = 8;
  int max_tokens = 32;
  int max_updates = 24;
  int max_earlier_logits = 0;  // above 0: most steps have scored rows
  std::vector<KvGroupSpec> groups = {{}};
  int num_position_dims = 1;
  // Above -1: histories and, of this group, place_tokens are there, and slots share no blocks unless the
  // delta is hostile. num_blocks must be above num_slots * max_blocks.
  int place_group = -1;
};

std::ostream& operator<<(std::ostream& out, const RefillShape& shape);

// Bytes of all arrays of a refill, and the arrays in memory that begins at `base`, aligned to 256.
// The padded sizes are the largest.
int64_t RefillBytes(const RefillShape& shape);
RefillArgs RefillArgsAt(const RefillShape& shape, std::byte* base);

// On the host; slots are as at creation.
class RefillMemory {
 public:
  explicit RefillMemory(const RefillShape& shape);
  RefillMemory(const RefillMemory&) = delete;
  RefillMemory& operator=(const RefillMemory&) = delete;

  const RefillShape& shape() const { return shape_; }
  RefillArgs& args() { return args_; }
  const RefillArgs& args() const { return args_; }
  std::byte* base();

  // Fills the step arrays, which refill must rewrite, with absurd values.
  void PoisonArrays();

 private:
  RefillShape shape_;
  std::vector<std::byte> bytes_;
  RefillArgs args_;
};

// Writes a delta that leaves, joins, updates and runs slots at random, and sets the padded sizes of
// `args`. `hostility`: the chance that an entry is nonsense, such as a slot out of range or one
// that was named before. Rows are mostly of slots that have room and blocks, so that most are good.
void RandomDelta(std::mt19937& random, const RefillShape& shape, double hostility,
                 RefillArgs& args);

// "seq_lens[3]: 7 and 0" where slots or step arrays up to their full capacity differ first; empty
// if they do not.
std::string FirstDifference(const RefillShape& shape, const RefillArgs& a, const RefillArgs& b);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_REFILL_MEMORY_H_
