// BlockPool::CheckInvariants(). The numbers are those in the header.

#include <glog/logging.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "reprise/base/ids.h"
#include "reprise/cache/blocks/block_pool.h"

namespace reprise {

void BlockPool::CheckInvariants() const {
  constexpr int32_t kEnd = kNullBlock.value();  // end of both lists
  std::vector<int> num_times_listed(num_blocks(), 0);
  int num_in_free_list = 0;
  for (int32_t block = first_free_; block != kEnd; block = nodes_[block].next) {
    CHECK(block > 0 && block < num_blocks()) << "invariant 1, block " << block;
    CHECK_EQ(++num_times_listed[block], 1) << "invariant 1, block " << block;
    CHECK_EQ(state(BlockId(block)), BlockState::kFree) << "invariant 3, block " << block;
    ++num_in_free_list;
  }
  CHECK_EQ(num_in_free_list, num_free_) << "invariant 3";
  int32_t previous = kEnd;
  for (int32_t block = nodes_[kEnd].next; block != kEnd; block = nodes_[block].next) {
    CHECK(block > 0 && block < num_blocks()) << "invariant 1, block " << block;
    CHECK_EQ(++num_times_listed[block], 1) << "invariant 1, block " << block;
    CHECK_EQ(nodes_[block].previous, previous) << "invariant 3, block " << block;
    CHECK(nodes_[block].ref_count == 0 && nodes_[block].has_content) << "invariant 3, " << block;
    previous = block;
  }
  CHECK_EQ(nodes_[kEnd].previous, previous) << "invariant 3: the newest cached block";

  const Node& null_node = nodes_[kNullBlock.value()];
  CHECK(null_node.ref_count == 0 && !null_node.has_content)
      << "invariant 2: the null block is in use";
  int num_of_state[3] = {};
  for (int32_t block = 1; block < num_blocks(); ++block) {
    CHECK_GE(nodes_[block].ref_count, 0) << "invariant 1, block " << block;
    const BlockState its_state = state(BlockId(block));
    ++num_of_state[static_cast<int>(its_state)];
    CHECK_EQ(num_times_listed[block] == 1, its_state != BlockState::kUsed)
        << "invariant 3, block " << block;
  }
  CHECK_EQ(num_of_state[static_cast<int>(BlockState::kFree)], num_free_) << "invariant 3";
  CHECK_EQ(num_of_state[static_cast<int>(BlockState::kCached)], num_cached_) << "invariant 3";
  CHECK_EQ(num_of_state[static_cast<int>(BlockState::kUsed)], num_used()) << "invariant 1";
  CHECK_EQ(num_allocatable(), std::max(num_free_ + num_cached_ - num_reserved_blocks_, 0))
      << "invariant 4";
}

}  // namespace reprise
