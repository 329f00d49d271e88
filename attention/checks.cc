#include "reprise/attention/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/visibility.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

template <typename T>
absl::Status Refused(absl::string_view name, absl::string_view expected, T got) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected, ", got ", got));
}

absl::Status CheckRotary(const RotaryParams& rotary, int head_dim_qk) {
  REPRISE_RETURN_IF_ERROR(CheckPositive("rotary.rope_scale", rotary.rope_scale));
  REPRISE_RETURN_IF_ERROR(CheckPositive("rotary.rope_theta", rotary.rope_theta));
  const int rotary_dim = rotary.rotary_dim == 0 ? head_dim_qk : rotary.rotary_dim;
  if (rotary_dim > 0 && rotary_dim <= head_dim_qk && rotary_dim % 2 == 0) return absl::OkStatus();
  return Refused("rotary.rotary_dim",
                 absl::StrCat("an even number up to head_dim_qk (", head_dim_qk, ")"), rotary_dim);
}

absl::Status CheckSparse(const BlockSparseParams& sparse) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("sparse.local_blocks", sparse.local_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("sparse.vertical_stride", sparse.vertical_stride, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("sparse.block_size", sparse.block_size, 1));
  return CheckAtLeast("sparse.tp_rank", sparse.tp_rank, 0);
}

absl::Status CheckKeyPositions(const AttentionParams& layer, const PagedBatch& batch) {
  const KeyPositions& ranks = batch.key_positions;
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("key_positions.world", ranks.world, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("key_positions.interleave", ranks.interleave, 1));
  if (ranks.rank < 0 || ranks.rank >= ranks.world) {
    return Refused("key_positions.rank", absl::StrCat("0 to world - 1 (", ranks.world - 1, ")"),
                   ranks.rank);
  }
  if (ranks.world == 1) return absl::OkStatus();
  if (batch.tail_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tail_len: expected none under context parallelism (world ", ranks.world, "), got one"));
  }
  const bool positions_matter = batch.causal || layer.window_left || layer.window_right ||
                                layer.alibi_slopes || layer.rotary || layer.is_sparse();
  if (!positions_matter || batch.num_tokens == 0) return absl::OkStatus();
  return CheckGiven("query_positions, under context parallelism", batch.query_positions);
}

absl::Status CheckSlopes(const AttentionParams& layer) {
  const int64_t stride = layer.alibi_row_stride;
  if (stride == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("alibi_slopes, with alibi_row_stride", layer.alibi_slopes));
  if (stride >= layer.num_q_heads) return absl::OkStatus();
  return Refused("alibi_row_stride",
                 absl::StrCat("0 or at least num_q_heads (", layer.num_q_heads, ")"), stride);
}

// Checks the mask fields of a paged or ragged batch.
template <typename Batch>
absl::Status CheckCustomMask(const Batch& batch) {
  if (!batch.custom_mask) {
    if (!batch.custom_mask_offset) return absl::OkStatus();
    return CheckGiven("custom_mask, with custom_mask_offset", batch.custom_mask);
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("custom_mask_bytes", batch.custom_mask_bytes, 0));
  if (batch.num_rows == 0) return absl::OkStatus();
  return CheckGiven("custom_mask_offset, with custom_mask", batch.custom_mask_offset);
}

absl::Status CheckCustomMaskStandsAlone(const PagedBatch& batch) {
  if (!batch.custom_mask) return absl::OkStatus();
  if (batch.tail_len) {
    return absl::InvalidArgumentError("tail_len must not be given together with custom_mask");
  }
  if (batch.key_positions.world == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("custom_mask: expected none under context parallelism (world ",
                   batch.key_positions.world, "), got one"));
}

// Checks MLA keys whose rope part is a separate tensor.
absl::Status CheckRope(const AttentionParams& layer, const KvLayer& kv) {
  const int most = kv.head_dim_qk - kv.head_dim_v;
  if (kv.rope_dim < 0 || kv.rope_dim > most) {
    return Refused("kv.rope_dim", absl::StrCat("0 to head_dim_qk - head_dim_v (", most, ")"),
                   kv.rope_dim);
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.k.dim_chunk", kv.k.dim_chunk, kv.key_dim()));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.v.dim_chunk", kv.v.dim_chunk, kv.head_dim_v));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.rope.dim_chunk", kv.rope.dim_chunk, kv.rope_dim));
  if (kv.num_blocks > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("kv.rope", kv.rope.data));
    if (kv.v.data != kv.k.data || kv.v.block_stride != kv.k.block_stride ||
        kv.v.token_stride != kv.k.token_stride || kv.v.head_stride != kv.k.head_stride) {
      return absl::InvalidArgumentError("kv.v: expected kv.k, with a rope part, got another");
    }
  }
  if (kv.rope_dtype == DType::kFloat64) {
    return Refused("kv.rope_dtype", "float32, float16, bfloat16 or an fp8 type",
                   std::string(DTypeName(kv.rope_dtype)));
  }
  // The kernels divide by this scale.
  if (!kv.k_scale.data) REPRISE_RETURN_IF_ERROR(CheckPositive("kv.k_scale", kv.k_scale.value));
  if (!layer.rotary) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "rotary: expected none with keys that have a rope part (kv.rope_dim), got one");
}

// Checks that `value`, which is name[index], is in [least, most]. `limit` describes `most` in
// messages.
absl::Status CheckElement(absl::string_view name, int64_t index, int64_t value, int64_t least,
                          int64_t most, absl::string_view limit) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "[", index, "]: expected ", least, " to ",
                                                 most, " (", limit, "), got ", value));
}

// Checks prefix sums that begin at 0: lengths are at most `longest`, and the total at most
// `capacity`.
absl::Status CheckStartLoc(absl::string_view name, const int32_t* loc, int num_rows, int longest,
                           absl::string_view longest_name, int capacity,
                           absl::string_view capacity_name) {
  REPRISE_RETURN_IF_ERROR(CheckElement(name, 0, loc[0], 0, 0, "the start"));
  for (int r = 0; r < num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(
        CheckElement(name, r + 1, loc[r + 1], loc[r], int64_t{loc[r]} + longest, longest_name));
  }
  return CheckElement(name, num_rows, loc[num_rows], 0, capacity, capacity_name);
}

// Checks that the mask of row `r` is within custom_mask.
template <typename Batch>
absl::Status CheckMask(const Batch& batch, int r, const BatchRow& row) {
  if (!batch.custom_mask || batch.custom_mask_offset[r] == -1) return absl::OkStatus();
  const int64_t num_bytes = (int64_t{row.query_len} * row.seq_len + 7) / 8;
  return CheckElement("custom_mask_offset", r, batch.custom_mask_offset[r], 0,
                      batch.custom_mask_bytes - num_bytes,
                      "custom_mask_bytes minus the row's mask bytes, or -1");
}

absl::Status CheckBlocks(const AttentionParams& layer, const PagedBatch& batch, const KvLayer& kv,
                         const BatchRow& row) {
  KeyRange range = {.begin = row.seq_len, .end = 0};
  for (int query = 0; query < row.query_len; ++query) {
    const KeyRange interval = KeyInterval(layer, row, query);
    if (interval.empty()) continue;
    range.begin = std::min(range.begin, interval.begin);
    range.end = std::max(range.end, interval.end);
  }
  if (range.begin >= range.end) return absl::OkStatus();
  const int32_t* table = batch.block_table + row.table_row * batch.block_table_stride;
  const int64_t last = (row.key_start + range.end - 1) / kv.block_size;
  for (int64_t column = (row.key_start + range.begin) / kv.block_size; column <= last; ++column) {
    if (table[column] >= 0 && table[column] < kv.num_blocks) continue;
    return CheckElement(absl::StrCat("block_table[", row.table_row, "]"), column, table[column], 0,
                        kv.num_blocks - 1, "a block of the cache");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAttentionParams(const AttentionParams& layer) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_kv_heads", layer.num_kv_heads, 1));
  if (layer.num_q_heads < 1 || layer.num_q_heads % layer.num_kv_heads != 0) {
    return Refused("num_q_heads",
                   absl::StrCat("a multiple of num_kv_heads (", layer.num_kv_heads, ")"),
                   layer.num_q_heads);
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_qk", layer.head_dim_qk, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_v", layer.head_dim_v, 1));
  if (layer.scale && !std::isfinite(*layer.scale)) {
    return Refused("scale", "a finite number", *layer.scale);
  }
  if (layer.window_left) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("window_left", *layer.window_left, 0));
  }
  if (layer.window_right) {
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("window_right", *layer.window_right, 0));
  }
  if (layer.softcap && !(std::isfinite(*layer.softcap) && *layer.softcap >= 0)) {
    return Refused("softcap", "a finite number, at least 0", *layer.softcap);
  }
  REPRISE_RETURN_IF_ERROR(CheckSlopes(layer));
  if (layer.rotary) REPRISE_RETURN_IF_ERROR(CheckRotary(*layer.rotary, layer.head_dim_qk));
  if (layer.sparse) return CheckSparse(*layer.sparse);
  return absl::OkStatus();
}

absl::Status CheckBatchFields(const AttentionParams& layer, const PagedBatch& batch) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", batch.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", batch.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", batch.max_query_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", batch.max_seq_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_blocks", batch.max_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckGiven("query_start_loc", batch.query_start_loc));
  if (batch.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("seq_lens", batch.seq_lens));
    REPRISE_RETURN_IF_ERROR(CheckGiven("block_table", batch.block_table));
    REPRISE_RETURN_IF_ERROR(
        CheckAtLeast("num_tables", batch.num_tables, batch.table_row ? 1 : batch.num_rows));
    if (batch.num_tables > 1) {
      REPRISE_RETURN_IF_ERROR(
          CheckAtLeast("block_table_stride", batch.block_table_stride, batch.max_blocks));
    }
  }
  if (batch.tail_len && batch.num_tokens > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("tail_mask, with tail_len", batch.tail_mask));
  }
  REPRISE_RETURN_IF_ERROR(CheckCustomMask(batch));
  REPRISE_RETURN_IF_ERROR(CheckCustomMaskStandsAlone(batch));
  return CheckKeyPositions(layer, batch);
}

absl::Status CheckBatchFields(const RaggedBatch& batch) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", batch.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", batch.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_keys", batch.num_keys, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", batch.max_query_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", batch.max_seq_len, 0));
  REPRISE_RETURN_IF_ERROR(CheckGiven("query_start_loc", batch.query_start_loc));
  REPRISE_RETURN_IF_ERROR(CheckGiven("key_start_loc", batch.key_start_loc));
  return CheckCustomMask(batch);
}

absl::Status CheckKvLayer(const AttentionParams& layer, const KvLayer& kv) {
  REPRISE_RETURN_IF_ERROR(CheckEqual("kv.num_kv_heads", kv.num_kv_heads, layer.num_kv_heads));
  REPRISE_RETURN_IF_ERROR(CheckEqual("kv.head_dim_qk", kv.head_dim_qk, layer.head_dim_qk));
  REPRISE_RETURN_IF_ERROR(CheckEqual("kv.head_dim_v", kv.head_dim_v, layer.head_dim_v));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.num_blocks", kv.num_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.block_size", kv.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.k.dim_chunk", kv.k.dim_chunk, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kv.v.dim_chunk", kv.v.dim_chunk, 1));
  if (kv.num_blocks > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("kv.k", kv.k.data));
    REPRISE_RETURN_IF_ERROR(CheckGiven("kv.v", kv.v.data));
  }
  if (kv.dtype == DType::kFloat64) {
    return Refused("kv.dtype", "float32, float16, bfloat16 or an fp8 type",
                   std::string(DTypeName(kv.dtype)));
  }
  if (kv.rope_dim != 0) REPRISE_RETURN_IF_ERROR(CheckRope(layer, kv));
  if (layer.is_sparse() && layer.sparse->block_size % kv.block_size != 0) {
    return Refused("sparse.block_size",
                   absl::StrCat("a multiple of the cache's block_size (", kv.block_size, ")"),
                   layer.sparse->block_size);
  }
  return absl::OkStatus();
}

absl::Status CheckBatchArrays(const AttentionParams& layer, const PagedBatch& batch,
                              const KvLayer& kv) {
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", batch.query_start_loc, batch.num_rows,
                                        batch.max_query_len, "max_query_len", batch.num_tokens,
                                        "num_tokens"));
  for (int r = 0; r < batch.num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(
        CheckElement("seq_lens", r, batch.seq_lens[r], 0, batch.max_seq_len, "max_seq_len"));
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0 || row.query_len == 0) continue;
    REPRISE_RETURN_IF_ERROR(
        CheckElement("table_row", r, row.table_row, 0, batch.num_tables - 1, "num_tables - 1"));
    const int64_t width = int64_t{batch.max_blocks} * kv.block_size;
    REPRISE_RETURN_IF_ERROR(CheckElement("key_start", r, row.key_start, 0, width - row.seq_len,
                                         "max_blocks * block_size - seq_len"));
    REPRISE_RETURN_IF_ERROR(
        CheckElement("tail_len", r, row.tail_len, 0, std::min(64, row.seq_len), "64 and seq_len"));
    REPRISE_RETURN_IF_ERROR(CheckMask(batch, r, row));
    REPRISE_RETURN_IF_ERROR(CheckBlocks(layer, batch, kv, row));
  }
  return absl::OkStatus();
}

absl::Status CheckBatchArrays(const RaggedBatch& batch) {
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", batch.query_start_loc, batch.num_rows,
                                        batch.max_query_len, "max_query_len", batch.num_tokens,
                                        "num_tokens"));
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("key_start_loc", batch.key_start_loc, batch.num_rows,
                                        batch.max_seq_len, "max_seq_len", batch.num_keys,
                                        "num_keys"));
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0 || row.query_len == 0) continue;
    REPRISE_RETURN_IF_ERROR(CheckMask(batch, r, row));
  }
  return absl::OkStatus();
}

}  // namespace reprise
