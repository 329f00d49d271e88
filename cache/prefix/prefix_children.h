// The blocks that follow a prefix: the children of each parent, the newest first.
//
//   PrefixChildren children(/*num_blocks=*/1024);
//   children.Add(block, tag);
//   std::array<BlockId, 64> newest;
//   const int num_found = children.FindNewest(tag, absl::MakeSpan(newest));
//
// A parent is identified by its tag, 64 bits of its hash and group. The tag is only a hint: callers
// must check that a child really follows their prefix.
//
// Thread safety: none; one owner. Cost: O(1) expected; allocates 20 bytes a block in the
// constructor, and nothing after it.

#ifndef REPRISE_CACHE_PREFIX_PREFIX_CHILDREN_H_
#define REPRISE_CACHE_PREFIX_PREFIX_CHILDREN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"

namespace reprise {

class PrefixChildren {
 public:
  // For the blocks of a pool of `num_blocks`, the null block included; 0: for no blocks.
  explicit PrefixChildren(int num_blocks);

  // REQUIRES: `block` is in the pool, not the null block, and not a child yet.
  void Add(BlockId block, uint64_t tag);

  // REQUIRES: `block` is a child.
  void Remove(BlockId block);

  // Replaces `block` by `next`. REQUIRES: `block` is a child, `next` is not.
  void Replace(BlockId block, BlockId next);

  // Fills `children` with the newest ones of a tag, the newest first; returns their number.
  // O(children.size()): if parents share a bucket, it stops after passing three times as many
  // children of others.
  int FindNewest(uint64_t tag, absl::Span<BlockId> children) const;

  bool contains(BlockId block) const { return links_[block.value()].previous != kNotLinked; }

  // Removes all children. O(num_blocks).
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

  // The head of the list of the tag's bucket.
  size_t BucketOf(uint64_t tag) const { return ((tag >> 32) * buckets_.size()) >> 32; }

  std::vector<Link> links_;       // by block
  std::vector<int32_t> buckets_;  // the newest child of each, 0 if none
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_CHILDREN_H_
