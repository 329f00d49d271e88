#include "reprise/cache/prefix/prefix_children.h"

#include <glog/logging.h>

#include <algorithm>

namespace reprise {

PrefixChildren::PrefixChildren(int num_blocks) : links_(num_blocks), buckets_(num_blocks, 0) {}

void PrefixChildren::Add(BlockId block, uint64_t tag) {
  CHECK(!contains(block)) << "block " << block << " is a child already";
  int32_t& first = buckets_[BucketOf(tag)];
  links_[block.value()] = {.tag = tag, .next = first, .previous = 0};
  if (first != 0) links_[first].previous = block.value();
  first = block.value();
}

void PrefixChildren::Remove(BlockId block) {
  CHECK(contains(block)) << "block " << block << " is not a child";
  Link& link = links_[block.value()];
  if (link.next != 0) links_[link.next].previous = link.previous;
  (link.previous != 0 ? links_[link.previous].next : buckets_[BucketOf(link.tag)]) = link.next;
  link.previous = kNotLinked;
}

void PrefixChildren::Replace(BlockId block, BlockId next) {
  CHECK(contains(block)) << "block " << block << " is not a child";
  CHECK(!contains(next)) << "block " << next << " is a child already";
  Link& link = links_[block.value()];
  links_[next.value()] = link;
  if (link.next != 0) links_[link.next].previous = next.value();
  (link.previous != 0 ? links_[link.previous].next : buckets_[BucketOf(link.tag)]) = next.value();
  link.previous = kNotLinked;
}

int PrefixChildren::FindNewest(uint64_t tag, absl::Span<BlockId> children) const {
  if (buckets_.empty()) return 0;
  const size_t num_steps_at_most = 4 * children.size();
  size_t num_found = 0;
  int32_t child = buckets_[BucketOf(tag)];
  for (size_t i = 0; i < num_steps_at_most && child != 0 && num_found < children.size(); ++i) {
    if (links_[child].tag == tag) children[num_found++] = BlockId(child);
    child = links_[child].next;
  }
  return static_cast<int>(num_found);
}

void PrefixChildren::Clear() {
  std::fill(links_.begin(), links_.end(), Link());
  std::fill(buckets_.begin(), buckets_.end(), 0);
}

int64_t PrefixChildren::num_bytes() const {
  return static_cast<int64_t>(links_.size() * sizeof(Link) + buckets_.size() * sizeof(int32_t));
}

}  // namespace reprise
