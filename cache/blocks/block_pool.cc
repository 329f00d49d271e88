#include "reprise/cache/blocks/block_pool.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// The null block's node terminates both lists.
constexpr int32_t kEnd = kNullBlock.value();

}  // namespace

std::ostream& operator<<(std::ostream& out, BlockState state) {
  switch (state) {
    case BlockState::kFree:
      return out << "free";
    case BlockState::kUsed:
      return out << "used";
    case BlockState::kCached:
      return out << "cached";
  }
  return out << "BlockState(" << static_cast<int>(state) << ")";
}

absl::StatusOr<BlockPool> BlockPool::Create(const BlockPoolOptions& options) {
  if (options.num_blocks < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks must hold the null block and one more: expected at least 2, got ",
                     options.num_blocks));
  }
  if (options.num_reserved_blocks < 0 || options.num_reserved_blocks >= options.num_blocks - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_reserved_blocks must leave a block to allocate: expected 0 to ",
                     options.num_blocks - 2, ", got ", options.num_reserved_blocks));
  }
  return BlockPool(options);
}

BlockPool::BlockPool(const BlockPoolOptions& options)
    : nodes_(options.num_blocks), num_reserved_blocks_(options.num_reserved_blocks) {
  for (int32_t block = options.num_blocks - 1; block > 0; --block) PushFree(block);
}

absl::Status BlockPool::Allocate(absl::Span<BlockId> blocks) {
  return AllocateKeeping(num_reserved_blocks_, blocks);
}

absl::Status BlockPool::AllocateReserved(absl::Span<BlockId> blocks) {
  return AllocateKeeping(0, blocks);
}

absl::Status BlockPool::CheckAllocatable(int64_t num_blocks) const {
  return CheckKeeping(num_reserved_blocks_, num_blocks);
}

absl::Status BlockPool::CheckAllocatableReserved(int64_t num_blocks) const {
  return CheckKeeping(0, num_blocks);
}

absl::Status BlockPool::CheckKeeping(int num_kept_back, int64_t num_asked) const {
  if (num_asked <= num_allocatable_reserved() - num_kept_back || num_asked == 0) {
    return absl::OkStatus();
  }
  const int num_at_most = num_blocks() - 1 - num_kept_back;
  if (num_asked > num_at_most) {
    return absl::InvalidArgumentError(absl::StrCat("blocks must fit the pool: expected at most ",
                                                   num_at_most, ", got ", num_asked));
  }
  const int num_now = std::max(num_allocatable_reserved() - num_kept_back, 0);
  return absl::ResourceExhaustedError(absl::StrCat("too few free blocks: ", num_now,
                                                   " are available now, requested ", num_asked,
                                                   "; retry after releases"));
}

absl::Status BlockPool::AllocateKeeping(int num_kept_back, absl::Span<BlockId> blocks) {
  const int64_t num_asked = static_cast<int64_t>(blocks.size());
  if (num_asked > num_allocatable_reserved() - num_kept_back) {
    REPRISE_RETURN_IF_ERROR(CheckKeeping(num_kept_back, num_asked));
  }
  for (BlockId& block : blocks) {
    block = BlockId(num_free_ > 0 ? TakeFree() : TakeOldestCached());
    nodes_[block.value()].ref_count = 1;
  }
  peak_used_ = std::max(peak_used_, num_used());
  return absl::OkStatus();
}

int32_t BlockPool::TakeFree() {
  const int32_t block = first_free_;
  first_free_ = nodes_[block].next;
  --num_free_;
  return block;
}

int32_t BlockPool::TakeOldestCached() {
  const int32_t block = nodes_[kEnd].next;
  CHECK_NE(block, kEnd) << "invariant 3: " << num_cached_ << " cached blocks, none in the list";
  Unlink(block);
  nodes_[block].has_content = false;
  --num_cached_;
  ++num_evictions_;
  return block;
}

void BlockPool::Share(BlockId block) {
  CheckOfThisPool(block);
  Node& node = nodes_[block.value()];
  if (node.ref_count == 0) {
    CHECK(node.has_content) << "Share of block " << block << ", which is not used";
    Unlink(block.value());
    --num_cached_;
    peak_used_ = std::max(peak_used_, num_used());
  }
  ++node.ref_count;
}

void BlockPool::Release(BlockId block) {
  Node& node = UsedNode(block, "Release");
  if (--node.ref_count > 0) return;
  if (node.has_content) {
    LinkNewest(block.value());
    ++num_cached_;
  } else {
    PushFree(block.value());
  }
}

void BlockPool::KeepContent(BlockId block) { UsedNode(block, "KeepContent").has_content = true; }

void BlockPool::DropContent(BlockId block) {
  CheckOfThisPool(block);
  Node& node = nodes_[block.value()];
  if (!node.has_content) return;
  node.has_content = false;
  if (node.ref_count > 0) return;
  Unlink(block.value());
  --num_cached_;
  PushFree(block.value());
}

bool BlockPool::has_content(BlockId block) const {
  CheckOfThisPool(block);
  return nodes_[block.value()].has_content;
}

BlockState BlockPool::state(BlockId block) const {
  CheckOfThisPool(block);
  const Node& node = nodes_[block.value()];
  if (node.ref_count > 0) return BlockState::kUsed;
  return node.has_content ? BlockState::kCached : BlockState::kFree;
}

int BlockPool::ref_count(BlockId block) const {
  CheckOfThisPool(block);
  return nodes_[block.value()].ref_count;
}

int BlockPool::num_allocatable() const {
  return std::max(num_allocatable_reserved() - num_reserved_blocks_, 0);
}

void BlockPool::CheckOfThisPool(BlockId block) const {
  CHECK(block.value() >= 0 && block.value() < num_blocks())
      << "block " << block << " is not of this pool of " << num_blocks();
}

BlockPool::Node& BlockPool::UsedNode(BlockId block, const char* call) {
  CheckOfThisPool(block);
  Node& node = nodes_[block.value()];
  CHECK_GT(node.ref_count, 0) << call << " of block " << block << ", which is not used";
  return node;
}

void BlockPool::PushFree(int32_t block) {
  nodes_[block].next = first_free_;
  first_free_ = block;
  ++num_free_;
}

void BlockPool::LinkNewest(int32_t block) {
  const int32_t newest = nodes_[kEnd].previous;
  nodes_[block].previous = newest;
  nodes_[block].next = kEnd;
  nodes_[newest].next = block;
  nodes_[kEnd].previous = block;
}

void BlockPool::Unlink(int32_t block) {
  nodes_[nodes_[block].previous].next = nodes_[block].next;
  nodes_[nodes_[block].next].previous = nodes_[block].previous;
}

}  // namespace reprise
