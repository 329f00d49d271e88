// Layers of a cache with random bits in a random layout, and moves within them: for tests of
// attention/move_kv.h on the host and on the device.
//
//   MoveCase moves(random);
//   MoveKvParams params = *moves.Params(OnHost);
//   moves.MoveByDefinition();        // in a copy
//   MoveKvOnHost(params);
//   EXPECT_EQ(moves.FirstDifference(), "");
//
// Thread safety: none; one owner. Not movable: the parameters point into it.

#ifndef ATTENTION_TESTING_MOVE_CASE_H_
#define ATTENTION_TESTING_MOVE_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/move_kv_params.h"
#include "attention/testing/kv_memory.h"
#include "attention/testing/random.h"
#include "cache/kv_layer.h"

namespace reprise {

class MoveCase {
 public:
  explicit MoveCase(Random& random);
  MoveCase(const MoveCase&) = delete;
  MoveCase& operator=(const MoveCase&) = delete;

  const std::string& description() const { return description_; }

  // The layers and moves, wherever `place` puts their bytes. It is asked for memory(i) of each
  // layer first, then for the moves.
  absl::StatusOr<MoveKvParams> Params(const Placement& place) const;

  // K and V of layer i, in one piece.
  std::vector<uint8_t>& memory(int i) { return memory_[i]; }
  int num_layers() const { return static_cast<int>(memory_.size()); }

  // In memory of its own: each move on a copy of what its row has become so far.
  void MoveByDefinition();

  // Where memory and the definition's differ first; empty if they do not.
  std::string FirstDifference() const;

 private:
  std::string description_;
  KvLayer layer_;  // offsets in place of pointers: see Params()
  int64_t v_offset_bytes_ = 0;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<std::vector<uint8_t>> expected_;
  int num_rows_ = 0;
  int max_moves_ = 0;
  std::vector<int64_t> move_from_;
  std::vector<int64_t> move_to_;
};

}  // namespace reprise

#endif  // ATTENTION_TESTING_MOVE_CASE_H_
