// Which blocks follow a prefix: the children of each parent, the one added last first.
//
//   PrefixChildren children(/*num_blocks=*/1024);
//   children.Add(block, tag);
//   std::array<BlockId, 64> newest;
//   const int num_found = children.FindNewest(tag, absl::MakeSpan(newest));
//
// A parent is known here by 64 bits of its hash and group, its tag, which is only a hint: whoever
// uses a child must prove that it is one.
//
// Thread safety: none; one owner. Cost: O(1) expected, no allocation after the constructor, which
// takes 20 bytes a block.

#ifndef CACHE_PREFIX_CHILDREN_H_
#define CACHE_PREFIX_CHILDREN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"

namespace reprise {

class PrefixChildren {
 public:
  // For the blocks of a pool of `num_blocks`, the null block included; 0: for none.
  explicit PrefixChildren(int num_blocks);

  // REQUIRES: `block` is of the pool, not the null block, and no child yet.
  void Add(BlockId block, uint64_t tag);

  // REQUIRES: `block` is a child.
  void Remove(BlockId block);

  // `next`, which is no child, takes the place of `block`, which is one.
  void Replace(BlockId block, BlockId next);

  // Fills `children` with those of a tag that were added last, the newest first; returns how many.
  // O(children.size()): where parents share a bucket it gives up after stepping over three times as
  // many children of others.
  int FindNewest(uint64_t tag, absl::Span<BlockId> children) const;

  bool contains(BlockId block) const { return links_[block.value()].previous != kNotLinked; }

  // Takes out all children. O(num_blocks).
  void Clear();

  int64_t num_bytes() const;

 private:
  static constexpr int32_t kNotLinked = -1;

  // A bucket's list, doubly linked; 0 ends it at both sides.
  struct Link {
    uint64_t tag = 0;
    int32_t next = 0;
    int32_t previous = kNotLinked;
  };

  // Where the list of the tag's bucket begins.
  size_t BucketOf(uint64_t tag) const { return ((tag >> 32) * buckets_.size()) >> 32; }

  std::vector<Link> links_;       // by block
  std::vector<int32_t> buckets_;  // the newest child of each, 0 if none
};

}  // namespace reprise

#endif  // CACHE_PREFIX_CHILDREN_H_
