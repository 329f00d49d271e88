#include "reprise/cache/storage/block_store.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

// Blocks of a pinned store begin at multiples of kBlockAlignment, and their extents at multiples of
// kWordBytes.
constexpr int64_t kBlockAlignment = 256;
constexpr int kWordBytes = 16;

int64_t RoundUp(int64_t bytes, int64_t unit) { return CeilDiv(bytes, unit) * unit; }

bool IsAligned(const BlockExtent& extent) {
  return reinterpret_cast<uintptr_t>(extent.data) % kWordBytes == 0 &&
         extent.block_stride % kWordBytes == 0 && extent.bytes % kWordBytes == 0;
}

// Returns the extent of `tensor`. `list` is the name of the argument that contains it.
absl::StatusOr<BlockExtent> ExtentOf(const char* list, const at::Tensor& tensor, size_t index,
                                     int num_blocks, at::Device device) {
  const auto error = [&](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(list, "[", index, "] ", parts...));
  };
  if (!tensor.defined()) return error("is missing: expected a tensor, got an undefined one");
  if (tensor.device() != device) {
    return error("has the wrong device: expected ", device.str(), ", got ", tensor.device().str());
  }
  if (tensor.dim() < 1 || tensor.size(0) != num_blocks) {
    return error("must have one row per block: expected ", num_blocks, ", got ",
                 tensor.dim() < 1 ? 0 : tensor.size(0));
  }
  if (!tensor.select(0, 0).is_contiguous()) {
    return error("must be contiguous within a block");
  }
  return BlockExtent{.data = static_cast<std::byte*>(tensor.mutable_data_ptr()),
                     .block_stride = tensor.stride(0) * tensor.element_size(),
                     .bytes = tensor.numel() / num_blocks * tensor.element_size()};
}

}  // namespace

absl::StatusOr<BlockStore> BlockStore::Over(const KvCache& cache,
                                            const BlockStoreOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<BlockStore> {
    BlockStore store;
    store.device_ = cache.device();
    store.num_blocks_ = cache.num_blocks();
    REPRISE_ASSIGN_OR_RETURN(store.extents_, BlockExtentsOf(cache.layers(), options.sides));
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (const at::Tensor& tensor : cache.tensors(layer)) store.kept_.push_back(tensor);
    }
    for (size_t i = 0; i < options.with.size(); ++i) {
      REPRISE_ASSIGN_OR_RETURN(
          const BlockExtent extent,
          ExtentOf("with", options.with[i], i, store.num_blocks_, cache.device()));
      store.extents_.push_back(extent);
      store.kept_.push_back(options.with[i]);
    }
    REPRISE_RETURN_IF_ERROR(store.ListExtents());
    return store;
  });
}

absl::StatusOr<BlockStore> BlockStore::Over(std::vector<at::Tensor> tensors) {
  return CatchTorchOr([&]() -> absl::StatusOr<BlockStore> {
    if (tensors.empty() || !tensors[0].defined() || tensors[0].dim() < 1 ||
        tensors[0].size(0) < 1 || tensors[0].size(0) > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(
          "tensors must hold blocks: expected at least one tensor [num_blocks, ...], with 1 to "
          "2^31 - 1 blocks");
    }
    BlockStore store;
    store.device_ = tensors[0].device();
    store.num_blocks_ = static_cast<int>(tensors[0].size(0));
    for (size_t i = 0; i < tensors.size(); ++i) {
      REPRISE_ASSIGN_OR_RETURN(
          const BlockExtent extent,
          ExtentOf("tensors", tensors[i], i, store.num_blocks_, store.device_));
      store.extents_.push_back(extent);
    }
    store.kept_ = std::move(tensors);
    REPRISE_RETURN_IF_ERROR(store.ListExtents());
    return store;
  });
}

absl::StatusOr<BlockStore> BlockStore::Pinned(const BlockStore& like, int num_blocks) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_blocks", num_blocks, 1));
  return CatchTorchOr([&]() -> absl::StatusOr<BlockStore> {
    BlockStore store;
    store.device_ = like.device_;
    store.num_blocks_ = num_blocks;
    int64_t block_bytes = 0;
    for (const BlockExtent& extent : like.extents_) {
      block_bytes = RoundUp(block_bytes, kWordBytes) + extent.bytes;
    }
    block_bytes = RoundUp(std::max<int64_t>(block_bytes, 1), kBlockAlignment);
    if (block_bytes > (int64_t{1} << 62) / num_blocks) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a host store is too large: expected at most 2^62 bytes, got ", num_blocks,
                       " blocks of ", block_bytes));
    }
    absl::StatusOr<MappedBuffer> memory =
        like.device_.is_cpu() ? MappedBuffer::AllocateOnHost(block_bytes * num_blocks)
                              : MappedBuffer::AllocateMapped(block_bytes * num_blocks);
    if (!memory.ok()) return memory.status();
    store.host_ = std::make_shared<MappedBuffer>(*std::move(memory));
    int64_t offset = 0;
    for (const BlockExtent& extent : like.extents_) {
      offset = RoundUp(offset, kWordBytes);
      store.extents_.push_back({.data = store.host_->host<std::byte>() + offset,
                                .block_stride = block_bytes,
                                .bytes = extent.bytes});
      offset += extent.bytes;
    }
    REPRISE_RETURN_IF_ERROR(store.ListExtents());
    return store;
  });
}

absl::Status BlockStore::ListExtents() {
  for (const BlockExtent& extent : extents_) bytes_per_block_ += extent.bytes;
  if (device_.is_cpu()) return absl::OkStatus();
  const bool is_aligned = std::all_of(extents_.begin(), extents_.end(), IsAligned);
  word_bytes_ = is_aligned ? kWordBytes : 1;
  // The device addresses of host memory may differ from its host addresses.
  const int64_t shift =
      host_ == nullptr ? 0 : host_->device<std::byte>() - host_->host<std::byte>();
  for (const BlockExtent& extent : extents_) {
    device_extents_.push_back(
        {.data = extent.data + shift, .block_stride = extent.block_stride, .bytes = extent.bytes});
    max_extent_bytes_ = std::max(max_extent_bytes_, extent.bytes);
  }
  if (device_extents_.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(device_extents_.size() * sizeof(BlockExtent));
  list_ = at::from_blob(device_extents_.data(), {bytes}, at::TensorOptions().dtype(at::kByte))
              .to(device_);
  return absl::OkStatus();
}

bool BlockStore::IsLike(const BlockStore& other) const {
  return device_ == other.device_ &&
         std::equal(extents_.begin(), extents_.end(), other.extents_.begin(), other.extents_.end(),
                    [](const BlockExtent& a, const BlockExtent& b) { return a.bytes == b.bytes; });
}

BlockExtentList BlockStore::device_extents() const {
  if (device_extents_.empty()) return {.num_blocks = num_blocks_};
  return {.extents = static_cast<const BlockExtent*>(list_.const_data_ptr()),
          .host_extents = device_extents_.data(),
          .num_extents = static_cast<int>(device_extents_.size()),
          .max_bytes = max_extent_bytes_,
          .num_blocks = num_blocks_,
          .word_bytes = word_bytes_};
}

}  // namespace reprise
