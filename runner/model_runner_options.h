// What a model runner is asked for, and what follows from it.

#ifndef RUNNER_MODEL_RUNNER_OPTIONS_H_
#define RUNNER_MODEL_RUNNER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "cache/kv_layout.h"
#include "graphs/graph_set_options.h"
#include "runner/model.h"

namespace reprise {

struct ModelRunnerOptions {
  // Slots, and the most rows of a step.
  int max_num_seqs = 8;
  // The most tokens of a step; at least max_num_seqs.
  int max_num_tokens = 512;
  // The longest sequence. Nothing: the model's max_position.
  std::optional<int> max_seq_len = {};
  int block_size = 16;
  // The KV cache: so many blocks, the null block included, or as many as fit into so many bytes.
  // Neither: enough for max_num_seqs sequences of max_seq_len, but on a GPU no more than fit into
  // 9/10 of the memory that is free beside graphs.
  std::optional<int> num_blocks = {};
  std::optional<int64_t> kv_memory_bytes = {};
  // Of the cache. Nothing: the model's dtype.
  std::optional<DType> kv_dtype = {};
  KvOrder kv_order = KvOrder::kNHD;

  // Nothing: kLazy on the CPU, where capturing costs nothing; kEager on a GPU.
  std::optional<GraphSetOptions::Mode> graphs = {};
  // Captured numbers of rows. Empty: DefaultGraphSizes(max_num_seqs).
  std::vector<int> graph_sizes = {};
  std::optional<int64_t> graph_memory_budget_bytes = {};

  // Steps launched before the oldest is awaited. Nothing: 1 on the CPU, 2 on a GPU.
  std::optional<int> max_steps_in_flight = {};
};

// `options` with every default that depends on the model filled in, but the size of the cache.
// Errors: InvalidArgument, naming the option or the field of the spec that does not fit.
absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec);

// The layout of the cache that the options and the spec ask for, with `num_blocks` blocks.
// REQUIRES: resolved options. Errors: Unimplemented if layers differ in KV heads or head sizes.
absl::StatusOr<KvLayoutOptions> CacheLayoutFor(const ModelRunnerOptions& options,
                                               const ModelSpec& spec, int num_blocks);

// How many blocks the cache gets. `free_bytes`: of the device, nothing where no limit is known;
// `graph_bytes`: of it, what graphs will take. Errors: InvalidArgument if the memory asked for, or
// ResourceExhausted if the memory that is free, does not hold a null block and one more.
absl::StatusOr<int> ChooseNumBlocks(const ModelRunnerOptions& options, const ModelSpec& spec,
                                    std::optional<int64_t> free_bytes, int64_t graph_bytes);

}  // namespace reprise

#endif  // RUNNER_MODEL_RUNNER_OPTIONS_H_
