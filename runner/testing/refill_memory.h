// Memory for tests of refill: slots, step arrays and a delta in one allocation, on the host or on a
// device. Draws random deltas, valid or hostile.
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
  int max_earlier_logits = 0;  // if above 0, most steps have scored rows
  std::vector<KvGroupSpec> groups = {{}};
  int num_position_dims = 1;
  // If >= 0, there are histories, and place_tokens of this group, and slots share no blocks unless
  // the delta is hostile. Requires num_blocks > num_slots * max_blocks.
  int place_group = -1;
};

std::ostream& operator<<(std::ostream& out, const RefillShape& shape);

// RefillBytes() returns the bytes of all arrays of a refill. RefillArgsAt() returns the arrays in
// memory that begins at `base`, which is aligned to 256 bytes. The padded numbers of rows and
// tokens are set to their maximum.
int64_t RefillBytes(const RefillShape& shape);
RefillArgs RefillArgsAt(const RefillShape& shape, std::byte* base);

// Memory on the host. The slots are in their initial state.
class RefillMemory {
 public:
  explicit RefillMemory(const RefillShape& shape);
  RefillMemory(const RefillMemory&) = delete;
  RefillMemory& operator=(const RefillMemory&) = delete;

  const RefillShape& shape() const { return shape_; }
  RefillArgs& args() { return args_; }
  const RefillArgs& args() const { return args_; }
  std::byte* base();

  // Fills the step arrays that refill must overwrite with invalid values.
  void PoisonArrays();

 private:
  RefillShape shape_;
  std::vector<std::byte> bytes_;
  RefillArgs args_;
};

// Writes a delta in which random slots leave, join, are updated and have rows. Sets the padded
// sizes of `args`. `hostility`: probability that a field is drawn from mostly invalid values, for
// example a slot that is out of range or named twice.
void RandomDelta(std::mt19937& random, const RefillShape& shape, double hostility,
                 RefillArgs& args);

// Returns a text such as "seq_lens[3]: 7 and 0" for the first difference of slots or step arrays,
// compared up to their full capacity. Returns an empty string if they are equal.
std::string FirstDifference(const RefillShape& shape, const RefillArgs& a, const RefillArgs& b);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_REFILL_MEMORY_H_
