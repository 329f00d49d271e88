// Which blocks follow a prefix: the children of each parent hash, the one added last first.
//
//   PrefixChildren children(/*num_blocks=*/1024);
//   children.Add(block, tag);
//   for (int32_t child = children.first(tag); child != 0; child = children.next(child)) ...
//
// A parent is known here by a 64-bit tag of its hash and group, which is only a hint: whoever walks
// the list must prove that a block is a child. Lists share buckets, so blocks of other parents are
// stepped over by next() and not seen.
//
// Thread safety: none; one owner. Cost: O(1) expected; 20 bytes a block.

#ifndef CACHE_PREFIX_CHILDREN_H_
#define CACHE_PREFIX_CHILDREN_H_

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace reprise {

class PrefixChildren {
 public:
  explicit PrefixChildren(int num_blocks);

  // REQUIRES: `block` is no child yet.
  void Add(BlockId block, uint64_t tag);

  // REQUIRES: `block` is a child.
  void Remove(BlockId block);

  bool contains(BlockId block) const { return links_[block.value()].is_linked; }

 private:
  struct Link {
    uint64_t tag = 0;
    int32_t next = 0;
    int32_t previous = 0;
    bool is_linked = false;
  };
  std::vector<Link> links_;  // by block
  std::vector<int32_t> buckets_;
};

}  // namespace reprise

#endif  // CACHE_PREFIX_CHILDREN_H_
