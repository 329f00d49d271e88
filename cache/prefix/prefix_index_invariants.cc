// PrefixIndex::CheckInvariants(). The numbers are those in the header.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {

void PrefixIndex::CheckInvariants() const {
  std::vector<int> num_times_listed(options_.num_blocks, 0);
  int num_lists = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (int32_t first = buckets_[i]; first != 0; first = entries_[first].next_in_bucket) {
      const Entry& its = entries_[first];
      CHECK(its.is_first) << "invariant 1, block " << first;
      CHECK_EQ(BucketOf(its.group, its.hash), i) << "invariant 1, block " << first;
      CHECK_EQ(Lookup(its.group, its.hash), first) << "invariant 2";
      ++num_lists;
      int32_t previous = its.previous_same, block = first;
      do {
        const Entry& entry = entries_[block];
        CHECK_EQ(++num_times_listed[block], 1) << "invariant 1, block " << block;
        CHECK_EQ(entry.previous_same, previous) << "invariant 1, block " << block;
        CHECK(entry.hash == its.hash && entry.group == its.group) << "invariant 1, " << block;
        CHECK_EQ(entry.is_first, block == first) << "invariant 1, block " << block;
        previous = block;
        block = entry.next_same;
      } while (block != first);
    }
  }
  int num_blocks_listed = 0;
  CHECK_EQ(num_times_listed[kNullBlock.value()], 0) << "invariant 1: the null block is indexed";
  for (int32_t block = 1; block < options_.num_blocks; ++block) {
    CHECK_EQ(contains(BlockId(block)), num_times_listed[block] == 1) << "invariant 1, " << block;
    num_blocks_listed += num_times_listed[block];
    if (!has_tokens()) continue;
    CHECK_EQ(children_.contains(BlockId(block)), entries_[block].is_first)
        << "invariant 3, block " << block;
  }
  CHECK_EQ(num_blocks_listed, num_indexed_) << "invariant 4";
  CHECK_EQ(num_lists, num_keys_) << "invariant 4";
}

}  // namespace reprise
