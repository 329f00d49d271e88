// What a model runner is asked for, and what follows from it.

#ifndef RUNNER_MODEL_RUNNER_OPTIONS_H_
#define RUNNER_MODEL_RUNNER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/cascade_rule.h"
#include "base/dtype.h"
#include "cache/kv_layout.h"
#include "graphs/graph_set_options.h"
#include "runner/model.h"

namespace reprise {

// Whether rounding may let a row's tokens depend on what else is in its step.
enum class BatchInvariance : int8_t {
  kOff,
  // A row gives the same bits whatever else is in the batch: attention is cut by the row alone, and
  // products use one algorithm for all numbers of rows. Slower. Holds for models whose products go
  // through Step::linears().
  kOn,
};

// Whether decode steps whose rows share a prefix of blocks read it once for all of them.
enum class CascadeMode : int8_t {
  kOff,
  // Where the rule of attention/cascade_rule.h says that it pays. Steps without such a prefix are
  // the same as with kOff. Those with one have graphs of their own, captured beside the others for
  // the numbers of rows for which it can pay: their capture and their memory is the price.
  kAuto,
};

struct ModelRunnerOptions {
  // Slots, and the most rows of a step.
  int max_num_seqs = 8;
  // The most tokens of a step; at least max_num_seqs.
  int max_num_tokens = 512;
  // The longest sequence. Nothing: the model's max_position.
  std::optional<int> max_seq_len = {};
  // The longest input of the encoder. Nothing: the model's max_encoder_position. A step encodes at
  // most max(max_encoder_tokens, max_num_tokens) tokens.
  std::optional<int> max_encoder_tokens = {};
  int block_size = 16;
  // The KV cache: so many blocks, the null block included, or as many as fit into so many bytes.
  // Neither: enough for max_num_seqs of the longest sequences, but on a GPU no more than fit into
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

  BatchInvariance batch_invariance = BatchInvariance::kOff;

  // Nothing: kAuto on a GPU for models of 16 bits, whose kernels the costs are measured for, unless
  // batch_invariance excludes it; else kOff. The CPU path reads a prefix row by row all the same.
  std::optional<CascadeMode> cascade = {};
  CascadeCosts cascade_costs = H200SharedMapCosts();
};

// `options` with every default that depends on the model filled in, but the size of the cache.
// Errors: InvalidArgument, naming the option or the field of the spec that does not fit.
absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec);

}  // namespace reprise

#endif  // RUNNER_MODEL_RUNNER_OPTIONS_H_
