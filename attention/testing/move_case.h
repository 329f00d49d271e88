// Layers of a cache with random bits in a random layout, and moves within them. For tests of
// attention/speculation/move_kv.h on the host and on the device.
//
//   MoveCase moves(random);
//   MoveKvArgs args = *moves.Args(OnHost);
//   moves.MoveByDefinition();        // in a copy
//   MoveKvOnHost(args);
//   EXPECT_EQ(moves.FirstDifference(), "");
//
// Thread safety: not thread-safe; one owner. Not movable, because the arguments point into it.

#ifndef REPRISE_ATTENTION_TESTING_MOVE_CASE_H_
#define REPRISE_ATTENTION_TESTING_MOVE_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/speculation/move_kv_args.h"
#include "reprise/attention/testing/kv_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

class MoveCase {
 public:
  explicit MoveCase(Random& random);
  MoveCase(const MoveCase&) = delete;
  MoveCase& operator=(const MoveCase&) = delete;

  const std::string& description() const { return description_; }

  // Returns the layers and moves, at the addresses that `place` returns. Calls `place` first for
  // memory(i) of each layer, then for the moves.
  absl::StatusOr<MoveKvArgs> Args(const Placement& place) const;

  // K and V of layer i in one array.
  std::vector<uint8_t>& memory(int i) { return memory_[i]; }
  int num_layers() const { return static_cast<int>(memory_.size()); }

  // Applies the moves in separate memory, one after another: each move reads the result of the
  // earlier moves of its row.
  void MoveByDefinition();

  // Returns the first difference between the memory and the definition's result, or an empty
  // string.
  std::string FirstDifference() const;

 private:
  std::string description_;
  KvLayer layer_;  // pointers are null; Args() sets them from the offsets
  int64_t v_offset_bytes_ = 0;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<std::vector<uint8_t>> expected_;
  int num_rows_ = 0;
  int max_moves_ = 0;
  std::vector<int64_t> move_from_;
  std::vector<int64_t> move_to_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_MOVE_CASE_H_
