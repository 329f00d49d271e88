#include "reprise/runner/speculation/block_tokens.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <cstdint>

#include "absl/algorithm/container.h"
#include "glog/logging.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

// Returns a group of full attention if one exists, otherwise the first group that holds keys of the
// sequence's own tokens.
int GroupOf(absl::Span<const KvGroupSpec> groups) {
  const auto first = [&](auto is_wanted) {
    return static_cast<int>(absl::c_find_if(groups, is_wanted) - groups.begin());
  };
  int group = first([](const KvGroupSpec& spec) { return spec.retention == KvRetention::kFull; });
  if (group == static_cast<int>(groups.size())) {
    group = first([](const KvGroupSpec& spec) { return spec.retention != KvRetention::kCross; });
  }
  CHECK_LT(group, static_cast<int>(groups.size()))
      << "at least one KV group must not be KvRetention::kCross";
  return group;
}

}  // namespace

absl::StatusOr<BlockTokens> BlockTokens::Allocate(int num_blocks, int block_size,
                                                  absl::Span<const KvGroupSpec> groups,
                                                  c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<BlockTokens> {
    return BlockTokens(
        at::full({num_blocks, block_size}, -1, at::TensorOptions(device).dtype(at::kInt)),
        GroupOf(groups));
  });
}

PlaceTokens BlockTokens::places() const {
  return {.tokens = tokens_.data_ptr<int32_t>(), .num_places = tokens_.numel(), .group = group_};
}

absl::Status BlockTokens::Recall(const SlotState& slots, const SlotJoin& join) const {
  if (join.seq_len == 0) return absl::OkStatus();
  return CatchTorch([&] {
    const auto view = [&](int32_t* first, int64_t count) {
      return at::from_blob(first, {count}, tokens_.options());
    };
    const int64_t num_blocks = (int64_t{join.seq_len} - 1) / tokens_.size(1) + 1;
    const at::Tensor table = view(slots.table_row(group_, join.slot.value()), num_blocks);
    view(slots.history.row(join.slot.value()), join.seq_len)
        .copy_(tokens_.index_select(0, table).view({-1}).narrow(0, 0, join.seq_len));
    return absl::OkStatus();
  });
}

void BlockTokens::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("tokens of blocks", tokens_.data_ptr());
}

}  // namespace reprise
