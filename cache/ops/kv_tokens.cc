#include "reprise/cache/ops/kv_tokens.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace reprise {

absl::Status CheckKvLayer(const KvLayer& kv) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.num_blocks", kv.num_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.block_size", kv.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.num_kv_heads", kv.num_kv_heads, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.head_dim_qk", kv.head_dim_qk, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.head_dim_v", kv.head_dim_v, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.k.dim_chunk", kv.k.dim_chunk, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.v.dim_chunk", kv.v.dim_chunk, 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("kv.rope_dim", kv.rope_dim, 0, kv.head_dim_qk - 1));
  if (kv.rope_dim > 0) {
    // Both parts of a key must be contiguous, and V must be in the latent part.
    REPRISE_RETURN_IF_ERROR(CheckAtMost("kv.head_dim_v", kv.head_dim_v, kv.key_dim()));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.k.dim_chunk", kv.k.dim_chunk, kv.key_dim()));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.rope.dim_chunk", kv.rope.dim_chunk, kv.rope_dim));
  }
  if (kv.num_blocks == 0) return absl::OkStatus();
  if (kv.rope_dim > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("kv.rope", kv.rope.data));
    if (kv.v.data != kv.k.data) {
      return absl::InvalidArgumentError("kv.v: expected kv.k, with a rope part, got another");
    }
  }
  REPRISE_RETURN_IF_ERROR(CheckGiven("kv.k", kv.k.data));
  return CheckGiven("kv.v", kv.v.data);
}

absl::Status CheckHasNoRows(std::string_view name, const Scale& scale) {
  if (scale.data == nullptr || scale.row_stride == 0) return absl::OkStatus();
  return CheckEqual(absl::StrCat(absl::string_view(name.data(), name.size()), ".row_stride"),
                    scale.row_stride, 0);
}

absl::Status CheckIsOne(std::string_view name, const Scale& scale) {
  if (scale.data == nullptr && scale.value == 1.0f) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(name.data(), name.size()),
                                                 " must be absent: expected none, got a scale"));
}

}  // namespace reprise
