#include "cache/block_pool.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace reprise {

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
    : ref_counts_(options.num_blocks, 0), num_reserved_blocks_(options.num_reserved_blocks) {
  free_.reserve(options.num_blocks - 1);
  for (int block = options.num_blocks - 1; block > 0; --block) free_.push_back(BlockId(block));
}

absl::Status BlockPool::Allocate(absl::Span<BlockId> blocks) {
  return AllocateKeeping(num_reserved_blocks_, blocks);
}

absl::Status BlockPool::AllocateReserved(absl::Span<BlockId> blocks) {
  return AllocateKeeping(0, blocks);
}

absl::Status BlockPool::AllocateKeeping(int num_kept_back, absl::Span<BlockId> blocks) {
  const size_t num_at_most = num_blocks() - 1 - num_kept_back;
  if (blocks.size() > num_at_most) {
    return absl::InvalidArgumentError(absl::StrCat("blocks must fit the pool: at most ",
                                                   num_at_most, ", asked for ", blocks.size()));
  }
  const size_t num_now = std::max(num_allocatable_reserved() - num_kept_back, 0);
  if (blocks.size() > num_now) {
    return absl::ResourceExhaustedError(absl::StrCat("too few free blocks: ", num_now,
                                                     " can be had now, asked for ", blocks.size(),
                                                     "; retry after releases"));
  }
  for (BlockId& block : blocks) {
    block = free_.back();
    free_.pop_back();
    ref_counts_[block.value()] = 1;
  }
  peak_used_ = std::max(peak_used_, num_used());
  return absl::OkStatus();
}

void BlockPool::Share(BlockId block) {
  CHECK_GT(ref_count(block), 0) << "Share of block " << block << ", which is not used";
  ++ref_counts_[block.value()];
}

void BlockPool::Release(BlockId block) {
  CHECK_GT(ref_count(block), 0) << "Release of block " << block << ", which is not used";
  if (--ref_counts_[block.value()] == 0) free_.push_back(block);
}

int BlockPool::ref_count(BlockId block) const {
  CHECK(block.value() >= 0 && block.value() < num_blocks())
      << "block " << block << " is not of this pool of " << num_blocks();
  return ref_counts_[block.value()];
}

int BlockPool::num_allocatable() const {
  return std::max(num_allocatable_reserved() - num_reserved_blocks_, 0);
}

void BlockPool::CheckInvariants() const {
  std::vector<int> num_times_free(num_blocks(), 0);
  for (BlockId block : free_) {
    CHECK(block.value() >= 0 && block.value() < num_blocks()) << "invariant 1, block " << block;
    CHECK(block != kNullBlock) << "invariant 2: the null block is free";
    CHECK_EQ(++num_times_free[block.value()], 1) << "invariant 1, block " << block;
  }
  CHECK_EQ(ref_counts_[kNullBlock.value()], 0) << "invariant 2: the null block is used";
  int num_counted_used = 0;
  for (int block = 1; block < num_blocks(); ++block) {
    CHECK_GE(ref_counts_[block], 0) << "invariant 3, block " << block;
    CHECK_EQ(ref_counts_[block] == 0, num_times_free[block] == 1) << "invariant 3, block " << block;
    num_counted_used += ref_counts_[block] > 0;
  }
  CHECK_EQ(static_cast<int>(free_.size()) + num_counted_used + 1, num_blocks()) << "invariant 1";
}

}  // namespace reprise
