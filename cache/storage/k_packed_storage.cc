#include "reprise/cache/storage/k_packed_storage.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<std::vector<int64_t>> KPackedStorageShape(const KvLayout& layout) {
  const KvLayoutOptions& options = layout.options();
  if (options.form != KvForm::kKPacked || options.head_dim_qk != options.head_dim_v) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layout must be K-packed with equal head dims: got ", std::string(KvFormName(options.form)),
        " with ", options.head_dim_qk, " and ", options.head_dim_v));
  }
  return std::vector<int64_t>{
      2, options.num_blocks,
      int64_t{options.block_size} * options.num_kv_heads * options.head_dim_qk};
}

absl::StatusOr<std::vector<at::Tensor>> SplitKPackedStorage(const KvLayout& layout,
                                                            const at::Tensor& storage) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, KPackedStorageShape(layout));
  if (!storage.defined()) {
    return absl::InvalidArgumentError(
        "storage is missing: expected a tensor, got an undefined one");
  }
  if (storage.sizes() != at::IntArrayRef(shape) || storage.stride(2) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "storage must be [2, num_blocks, block_size * num_kv_heads * head_dim] with contiguous "
        "blocks: expected [",
        absl::StrJoin(shape, ", "), "], got [", absl::StrJoin(storage.sizes(), ", "),
        "] with strides [", absl::StrJoin(storage.strides(), ", "), "]"));
  }
  return CatchTorchOr([&]() -> absl::StatusOr<std::vector<at::Tensor>> {
    std::vector<at::Tensor> views;
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const at::Tensor side = storage.select(0, static_cast<int64_t>(i));
      std::vector<int64_t> strides = layout.tensors()[i].strides;
      strides[0] = side.stride(0);
      views.push_back(side.as_strided(layout.tensors()[i].shape, strides, side.storage_offset()));
    }
    return views;
  });
}

}  // namespace reprise
