#include "reprise/cache/tables/block_table.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

// 8 GiB of entries. A larger size is assumed to be a mistake.
constexpr int64_t kMaxEntries = int64_t{1} << 31;

}  // namespace

absl::StatusOr<BlockTable> BlockTable::Create(const BlockTableOptions& options) {
  if (options.num_slots < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_slots must be positive: expected at least 1, got ", options.num_slots));
  }
  if (options.max_blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_blocks must be positive: expected at least 1, got ", options.max_blocks));
  }
  if (options.row_stride != 0 && options.row_stride < options.max_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("row_stride must hold a row: expected at least ",
                                                   options.max_blocks, ", got ",
                                                   options.row_stride));
  }
  const int64_t row_stride = std::max<int64_t>(options.row_stride, options.max_blocks);
  if (row_stride > kMaxEntries / options.num_slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_slots * row_stride is too large: expected at most ", kMaxEntries,
                     ", got ", options.num_slots, " * ", row_stride));
  }
  return BlockTable(options);
}

BlockTable::BlockTable(const BlockTableOptions& options)
    : num_slots_(options.num_slots),
      max_blocks_(options.max_blocks),
      row_stride_(options.row_stride == 0 ? options.max_blocks : options.row_stride),
      entries_(num_slots_ * row_stride_, kNullBlock) {}

const int32_t* BlockTable::data() const { return AsInts(entries_).data(); }

BlockTableView BlockTable::view(int block_size, int num_blocks) const {
  return {.entries = data(),
          .row_stride = row_stride_,
          .num_tables = num_slots_,
          .max_blocks = max_blocks_,
          .block_size = block_size,
          .num_blocks = num_blocks};
}

absl::Span<const BlockId> BlockTable::row(SlotId slot) const {
  CHECK(slot.value() >= 0 && slot.value() < num_slots_)
      << "slot " << slot << " is not of this table of " << num_slots_;
  return absl::MakeConstSpan(entries_).subspan(slot.value() * row_stride_, max_blocks_);
}

absl::Span<BlockId> BlockTable::mutable_row(SlotId slot) {
  CHECK(slot.value() >= 0 && slot.value() < num_slots_)
      << "slot " << slot << " is not of this table of " << num_slots_;
  return absl::MakeSpan(entries_).subspan(slot.value() * row_stride_, max_blocks_);
}

absl::Status BlockTable::Apply(absl::Span<const BlockTableUpdate> updates) {
  for (const BlockTableUpdate& update : updates) {
    const int32_t slot = update.slot.value();
    if (slot < 0 || slot >= num_slots_ || update.column < 0 || update.column >= max_blocks_ ||
        update.block.value() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("updates must be within the table: expected slot < ", num_slots_,
                       ", column < ", max_blocks_, ", block >= 0, got slot ", slot, ", column ",
                       update.column, ", block ", update.block.value()));
    }
  }
  for (const BlockTableUpdate& update : updates) {
    mutable_row(update.slot)[update.column] = update.block;
  }
  return absl::OkStatus();
}

absl::Span<const int32_t> AsInts(absl::Span<const BlockId> blocks) {
  static_assert(sizeof(BlockId) == sizeof(int32_t));
  return {reinterpret_cast<const int32_t*>(blocks.data()), blocks.size()};
}

}  // namespace reprise
