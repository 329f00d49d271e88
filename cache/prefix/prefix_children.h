// The blocks that follow a prefix: the children of each parent, newest first.
//
//   PrefixChildren children(/*num_blocks=*/1024);
//   children.Add(block, tag);
//   std::array<BlockId, 64> newest;
//   const int num_found = children.FindNewest(tag, absl::MakeSpan(newest));
//
// A parent is identified by its tag, 64 bits derived from its hash and group. The tag is only a
// hint: callers must check that a child really follows their prefix.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) expected. Allocates 20 bytes per block in
// the constructor, and nothing later.

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
  // Creates the lists for a pool of `num_blocks`, including the null block. 0: supports no blocks.
  explicit PrefixChildren(int num_blocks);

  // Adds `block` as the newest child. REQUIRES: `block` is in the pool, not the null block, and not
  // yet a child.
  void Add(BlockId block, uint64_t tag);

  // Removes `block`. REQUIRES: `block` is a child.
  void Remove(BlockId block);

  // Replaces `block` with `next`, in the same position. REQUIRES: `block` is a child, and `next` is
  // not.
  void Replace(BlockId block, BlockId next);

  // Fills `children` with the newest children of a tag, newest first. Returns their number.
  // O(children.size()): visits at most 4 * children.size() entries of a bucket, which several
  // parents may share.
  int FindNewest(uint64_t tag, absl::Span<BlockId> children) const;

  bool contains(BlockId block) const { return links_[block.value()].previous != kNotLinked; }

  // Removes all children. O(num_blocks).
  void Clear();

  int64_t num_bytes() const;

 private:
  static constexpr int32_t kNotLinked = -1;

  // An element of a bucket's doubly linked list. 0 terminates the list at both ends.
  struct Link {
    uint64_t tag = 0;
    int32_t next = 0;
    int32_t previous = kNotLinked;
  };

  // Returns the index of the tag's bucket in buckets_.
  size_t BucketOf(uint64_t tag) const { return ((tag >> 32) * buckets_.size()) >> 32; }

  std::vector<Link> links_;       // indexed by block
  std::vector<int32_t> buckets_;  // the newest child of each bucket, or 0
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_CHILDREN_H_
