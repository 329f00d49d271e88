#include "runner/model_runner_options.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is too small: expected at least ", least, ", got ", value));
}

absl::Status CheckSpec(const ModelSpec& spec) {
  if (spec.layers.empty()) {
    return absl::InvalidArgumentError("the model's spec names no attention layer");
  }
  REPRISE_RETURN_IF_ERROR(AtLeast("vocab_size of the model's spec", spec.vocab_size, 1));
  return AtLeast("max_position of the model's spec", spec.max_position, 1);
}

}  // namespace

absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec) {
  REPRISE_RETURN_IF_ERROR(CheckSpec(spec));
  ModelRunnerOptions resolved = options;
  const bool on_cpu = spec.device.is_cpu();
  if (!resolved.max_seq_len) resolved.max_seq_len = spec.max_position;
  if (!resolved.kv_dtype) resolved.kv_dtype = spec.dtype;
  if (!resolved.graphs) {
    resolved.graphs = on_cpu ? GraphSetOptions::Mode::kLazy : GraphSetOptions::Mode::kEager;
  }
  if (!resolved.max_steps_in_flight) resolved.max_steps_in_flight = on_cpu ? 1 : 2;

  REPRISE_RETURN_IF_ERROR(AtLeast("max_num_seqs", resolved.max_num_seqs, 1));
  REPRISE_RETURN_IF_ERROR(
      AtLeast("max_num_tokens", resolved.max_num_tokens, resolved.max_num_seqs));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_seq_len", *resolved.max_seq_len, 1));
  REPRISE_RETURN_IF_ERROR(AtLeast("block_size", resolved.block_size, 1));
  REPRISE_RETURN_IF_ERROR(AtLeast("max_steps_in_flight", *resolved.max_steps_in_flight, 1));
  if (*resolved.max_seq_len > spec.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_seq_len is beyond the model's max_position: expected at most ",
                     spec.max_position, ", got ", *resolved.max_seq_len));
  }
  if (resolved.num_blocks) {
    REPRISE_RETURN_IF_ERROR(AtLeast("num_blocks", *resolved.num_blocks, 2));
    if (resolved.kv_memory_bytes) {
      return absl::InvalidArgumentError("num_blocks and kv_memory_bytes exclude each other");
    }
  }
  return resolved;
}

absl::StatusOr<KvLayoutOptions> CacheLayoutFor(const ModelRunnerOptions& options,
                                               const ModelSpec& spec, int num_blocks) {
  const AttentionParams& first = spec.layers.front().params;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionParams& layer = spec.layers[i].params;
    if (layer.num_kv_heads == first.num_kv_heads && layer.head_dim_qk == first.head_dim_qk &&
        layer.head_dim_v == first.head_dim_v) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(
        "layer ", i,
        " has another cache than layer 0: supported are layers alike in num_kv_heads, ",
        "head_dim_qk and head_dim_v"));
  }
  return KvLayoutOptions{.num_layers = static_cast<int>(spec.layers.size()),
                         .num_blocks = num_blocks,
                         .block_size = options.block_size,
                         .num_kv_heads = first.num_kv_heads,
                         .head_dim_qk = first.head_dim_qk,
                         .head_dim_v = first.head_dim_v,
                         .dtype = *options.kv_dtype,
                         .order = options.kv_order};
}

absl::StatusOr<int> ChooseNumBlocks(const ModelRunnerOptions& options, const ModelSpec& spec,
                                    std::optional<int64_t> free_bytes, int64_t graph_bytes) {
  if (options.num_blocks) return *options.num_blocks;
  REPRISE_ASSIGN_OR_RETURN(const KvLayoutOptions layout_options, CacheLayoutFor(options, spec, 2));
  if (options.kv_memory_bytes) return NumBlocksForBytes(layout_options, *options.kv_memory_bytes);
  const int64_t blocks_per_seq = (*options.max_seq_len - 1) / options.block_size + 1;
  int64_t num_blocks = 1 + blocks_per_seq * options.max_num_seqs;
  if (free_bytes) {
    REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(layout_options));
    const int64_t block_bytes = layout.bytes_per_block();
    const int64_t fit = (*free_bytes - graph_bytes) / 10 * 9 / block_bytes;
    if (fit < 2) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory is left for the KV cache: ", *free_bytes, " bytes are free, graphs take ",
          graph_bytes, ", a block takes ", block_bytes));
    }
    num_blocks = std::min(num_blocks, fit);
  }
  return static_cast<int>(std::min<int64_t>(num_blocks, std::numeric_limits<int>::max()));
}

}  // namespace reprise
