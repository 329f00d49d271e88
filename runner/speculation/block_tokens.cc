#include "runner/speculation/block_tokens.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>

#include "absl/algorithm/container.h"
#include "base/torch_status.h"
#include "glog/logging.h"

namespace reprise {
namespace {

// Of full attention if there is one, else the first that has keys of the sequence's own tokens.
int GroupOf(absl::Span<const KvGroupSpec> groups) {
  const auto first = [&](auto is_wanted) {
    return static_cast<int>(absl::c_find_if(groups, is_wanted) - groups.begin());
  };
  int group = first([](const KvGroupSpec& spec) { return spec.retention == KvRetention::kFull; });
  if (group == static_cast<int>(groups.size())) {
    group = first([](const KvGroupSpec& spec) { return spec.retention != KvRetention::kCross; });
  }
  CHECK_LT(group, static_cast<int>(groups.size())) << "a decoder has keys of its own tokens";
  return group;
}

}  // namespace

absl::StatusOr<BlockTokens> BlockTokens::Allocate(int num_blocks, int block_size,
                                                  absl::Span<const KvGroupSpec> groups,
                                                  c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<BlockTokens> {
    return BlockTokens(at::full({int64_t{num_blocks} + 1, block_size}, -1,
                                at::TensorOptions(device).dtype(at::kInt)),
                       GroupOf(groups));
  });
}

KvLayer BlockTokens::layer() const {
  KvView view;
  view.data = tokens_.data_ptr();
  view.block_stride = tokens_.size(1);
  view.token_stride = 1;
  view.head_stride = 1;
  view.dim_chunk = 1;
  view.dim_chunk_stride = 1;
  return {.k = view,
          .v = view,
          .dtype = DType::kFloat32,  // elements of four bytes
          .num_blocks = static_cast<int>(tokens_.size(0)) - 1,
          .block_size = static_cast<int>(tokens_.size(1)),
          .num_kv_heads = 1,
          .head_dim_qk = 1,
          .head_dim_v = 1};
}

absl::Status BlockTokens::Keep(const at::Tensor& slots, const at::Tensor& token_ids) const {
  return CatchTorch([&] {
    at::Tensor places = tokens_.view({-1});
    places.scatter_(0, slots.remainder(places.size(0)), token_ids);  // slot -1 is the last place
    return absl::OkStatus();
  });
}

absl::Status BlockTokens::KeepHistories(const SlotState& slots,
                                        absl::Span<const SlotId> leaves) const {
  return CatchTorch([&] {
    const int64_t block_size = tokens_.size(1);
    const int64_t num_tokens = std::min(slots.history.stride, slots.max_blocks * block_size);
    const int64_t num_blocks = (num_tokens - 1) / block_size + 1;
    for (const SlotId slot : leaves) {
      at::Tensor history = at::full({num_blocks * block_size}, -1, tokens_.options());
      history.narrow(0, 0, num_tokens)
          .copy_(at::from_blob(slots.history.row(slot.value()), {num_tokens}, tokens_.options()));
      const at::Tensor table =
          at::from_blob(slots.table_row(group_, slot.value()), {num_blocks}, tokens_.options());
      at::Tensor blocks = tokens_;
      blocks.index_copy_(0, table.to(at::kLong), history.view({num_blocks, block_size}));
      blocks.select(0, 0).fill_(-1);  // the null block
    }
    return absl::OkStatus();
  });
}

absl::Status BlockTokens::Recall(const SlotState& slots, absl::Span<const SlotJoin> joins) const {
  return CatchTorch([&] {
    const auto view = [&](int32_t* first, int64_t count) {
      return at::from_blob(first, {count}, tokens_.options());
    };
    for (const SlotJoin& join : joins) {
      if (join.seq_len == 0) continue;
      const int64_t num_blocks = (int64_t{join.seq_len} - 1) / tokens_.size(1) + 1;
      const at::Tensor table = view(slots.table_row(group_, join.slot), num_blocks);
      view(slots.history.row(join.slot), join.seq_len)
          .copy_(tokens_.index_select(0, table).view({-1}).narrow(0, 0, join.seq_len));
    }
    return absl::OkStatus();
  });
}

void BlockTokens::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("tokens of blocks", tokens_.data_ptr());
}

}  // namespace reprise
