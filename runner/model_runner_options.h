// Options of a model runner, in groups, and the defaults that depend on the model.
//
//   const ModelRunnerOptions options = {.max_num_seqs = 64,
//                                       .cache = {.size = NumBytes{int64_t{20} << 30},
//                                                 .dtype = DType::kFp8E4M3},
//                                       .device = {.batch_invariance = BatchInvariance::kOn}};
//
// docs/tuning.md lists each field with its default and its effect.

#ifndef REPRISE_RUNNER_MODEL_RUNNER_OPTIONS_H_
#define REPRISE_RUNNER_MODEL_RUNNER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/device_profile.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/graphs/graph_set_options.h"
#include "reprise/runner/kv_scales.h"
#include "reprise/runner/model.h"
#include "reprise/runner/sampling/logits_stage.h"
#include "reprise/runner/speculation/speculation_options.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class Collectives;
class StepTrace;

// Amount of memory for KV blocks: a number of blocks, or a number of bytes. If the model is sharded
// over ranks, NumBytes is the memory per rank.
struct NumBlocks {
  int value = 0;
  friend bool operator==(const NumBlocks&, const NumBlocks&) = default;
};
struct NumBytes {
  int64_t value = 0;
  friend bool operator==(const NumBytes&, const NumBytes&) = default;
};
using BlockMemory = std::variant<std::monostate, NumBlocks, NumBytes>;

// Whether the scales of a quantised cache are computed from data.
enum class KvCalibration : int8_t {
  kOff,
  // The first step with rows runs eagerly and sets the scales of each layer that writes keys in
  // this step, per layer or per head. The largest key and the largest value of that step then map
  // to the largest number of the cache's dtype. For models that write keys with Step::Attend() or
  // Step::Write().
  kFirstStep,
};

// The KV cache.
struct CacheOptions {
  // Number of tokens per block, at least 1. If ranks shard the keys, number of tokens per block and
  // rank; must then be a multiple of DebugOptions::context_interleave.
  int block_size = 16;
  // Size of the cache. NumBlocks includes the null block, and is at least 2. Default: enough for
  // max_num_seqs sequences of maximum length, but on a GPU at most 9/10 of the memory that graphs
  // and eager steps leave free.
  BlockMemory size = {};
  // Host memory for the blocks of sequences that are swapped out (ScheduledBatch::swap_outs);
  // pinned on a GPU. NumBlocks includes host block 0, which is never used, so it must be at least
  // 2. Default, or 0: no swapping.
  BlockMemory swap = {};
  // nullopt: the model's dtype.
  std::optional<DType> dtype = {};
  // Layout of a block's memory. Change it only to share the cache with other kernels.
  KvOrder order = KvOrder::kNHD;
  // kPair, kPacked, kDiffKv or kKPacked (cache/storage/kv_layout.h). MLA layers always store
  // latents.
  KvForm form = KvForm::kPair;
  // Scales of an fp8 cache (runner/kv_scales.h). Other caches have no scales.
  KvScaleShape scale_shape = KvScaleShape::kPerLayer;
  KvCalibration calibration = KvCalibration::kOff;

  bool swaps() const { return !std::holds_alternative<std::monostate>(swap); }
};

// Whether mixed steps, which have prefill chunks in some or all rows, are replayed from graphs like
// decode steps. If graphs are off, steps are padded as if they were replayed.
enum class MixedGraphs : int8_t {
  kOff,  // mixed steps run eagerly, without padding
  // Mixed steps with at most mixed_tokens.back() tokens are padded to the next captured number of
  // tokens. Model::Forward() is then also captured with rows of several tokens. These graphs take
  // capture time and memory.
  kOn,
};

// CUDA graphs of steps.
struct GraphOptions {
  // When graphs are captured. nullopt: kLazy on the CPU, where a capture costs nothing, and kEager
  // on a GPU.
  std::optional<GraphSetOptions::Mode> mode = {};
  // Captured numbers of rows, strictly ascending, at most max_num_seqs. Empty:
  // DefaultGraphSizes(max_num_seqs).
  std::vector<int> sizes = {};
  // Maximum memory of all graphs, in bytes. Steps without a graph run eagerly. nullopt: no limit.
  std::optional<int64_t> memory_budget_bytes = {};
  // nullopt: kOn on a GPU. kOff on the CPU, where a replay saves no launches and padded tokens take
  // as long as live tokens.
  std::optional<MixedGraphs> mixed = {};
  // Captured numbers of tokens of mixed steps, strictly ascending, at most max_num_tokens. Empty:
  // DefaultMixedTokens(max_num_tokens).
  std::vector<int> mixed_tokens = {};
};

// The ranks that a model is sharded over (docs/distributed.md).
struct RankOptions {
  // All ranks, including this process; must outlive the runner. Null: one rank. All ranks must
  // create their runners at the same time, with the same options, and launch the same batches. The
  // cache gets the number of blocks that fits into the memory of every rank.
  Collectives* collectives = nullptr;

  // Number of ranks that shard the keys of every sequence (decode context parallelism). Must divide
  // the number of ranks; the other dimension of the grid (distributed/rank_grid.h) shards the
  // weights, and `collectives` spans the whole grid. 1: every rank has all keys. kAllRanks: all
  // ranks shard the keys. At least 1 after resolution.
  //
  // If above 1, RunnerShape::block_size is cache.block_size * context_ranks. Requires a model that
  // attends over ranks (runner/ranks/context_attention.h) and whose layers have full attention or
  // windows. Cannot be combined with cascade, batch_invariance, calibration, a draft model, draft
  // heads or trees of drafts.
  static constexpr int kAllRanks = 0;
  int context_ranks = 1;

  bool shards_context() const { return context_ranks > 1; }
};

// Whether rounding may make a row's tokens depend on the other rows of its step.
enum class BatchInvariance : int8_t {
  kOff,
  // A row's logits are bitwise independent of the other rows of its step: the KV splits of a row
  // depend only on the row, and GEMMs use the same algorithm for all numbers of rows. Slower. For
  // models whose GEMMs use Step::linears().
  kOn,
};

// Whether decode steps whose rows share a prefix of blocks read the prefix once for all rows.
enum class CascadeMode : int8_t {
  kOff,
  // Reads the prefix once if attention/merge/cascade_rule.h estimates that this is faster. All
  // other steps run as with kOff. Steps that read a prefix once use additional graphs, captured for
  // the numbers of rows for which reading once can be faster. These graphs take capture time and
  // memory.
  kAuto,
};

// The device and its kernels.
struct DeviceOptions {
  // The cudaStream_t of all steps, on the model's device. Must not be a default stream, and must
  // outlive the runner. nullopt: the runner creates a stream.
  std::optional<CUstream_st*> stream = {};
  // File that stores which GEMM kernels were chosen by timing on a GPU, so that processes with the
  // same options compute bitwise identical results (LinearContextOptions::choices_file). Empty: no
  // file.
  std::string linear_choices_file = {};
  BatchInvariance batch_invariance = BatchInvariance::kOff;
  // nullopt: kAuto on a GPU for 16-bit models, for which the costs are measured, unless
  // batch_invariance is on or ranks shard the keys; otherwise kOff. The CPU always reads a prefix
  // for each row.
  std::optional<CascadeMode> cascade = {};
  // Measured costs of the GPU. nullopt: ProfileOf() the device's limits. Affects speed; with
  // cascade on, or batch_invariance off, also rounding. With cascade on, all ranks must have the
  // same cascade_costs.
  std::optional<DeviceProfile> profile = {};
};

// Debug mode that compares replayed steps with eager steps.
enum class ReplayCheck : int8_t {
  kOff,
  // After each replay, the step runs again eagerly on the same step arrays. The tensors of
  // Step::Watch() must be bitwise identical in both runs: q, k, v and out of every attention layer,
  // the logits, and the tensors that the model adds. Otherwise, Await() returns Internal with the
  // first tensor that differs, in the order of the forward pass, and the index of the difference.
  // This detects graphs that captured a host value, or that read memory which has moved. Each step
  // waits for the device. The graphs keep a copy of all watched tensors of the largest step: leave
  // memory for it (CacheOptions::size).
  kEveryReplay,
};

// How attention is launched.
enum class AttentionLaunch : int8_t {
  kInGraphs,
  // By the host, between captured pieces of a step, in each layer of each replay. For attention
  // that cannot be captured, and for comparison. Slower.
  kBetweenGraphs,
};

// Options for tests, debugging and comparison. The defaults are suitable for serving.
struct DebugOptions {
  ReplayCheck replay_check = ReplayCheck::kOff;
  // Receives the spans of each step (runner/trace/step_trace.h); must outlive the runner. Null:
  // none.
  StepTrace* trace = nullptr;
  AttentionLaunch attention = AttentionLaunch::kInGraphs;
  // Captured numbers of rows of mixed steps, strictly ascending, at most max_num_seqs. Empty:
  // DefaultMixedSizes(max_num_seqs).
  std::vector<int> mixed_graph_sizes = {};
  // Whether ranks sample from sharded logits: they then gather candidates instead of logits in
  // steps whose logits the caller cannot read (StepLogits), if the parameters of all rows allow it.
  // For models with sharded logits (runner/ranks/sharded_logits.h). Off with ReplayCheck. nullopt:
  // yes on the CPU, no on a GPU, whose graphs contain the gather.
  std::optional<bool> sample_shards = {};
  // If ranks shard the keys: number of consecutive tokens that one rank stores; at least 1.
  int context_interleave = 1;
};

struct ModelRunnerOptions {
  // Number of slots, and maximum number of rows per step; at least 1.
  int max_num_seqs = 8;
  // Maximum number of tokens per step; at least max_num_seqs. With drafts, at least max_num_seqs *
  // (1 + max_drafts).
  int max_num_tokens = 512;
  // Maximum number of tokens per sequence. nullopt: the model's max_position.
  std::optional<int> max_seq_len = {};
  // Maximum number of encoder tokens per sequence. nullopt: the model's max_encoder_position. A
  // step encodes at most max(max_encoder_tokens, max_num_tokens) tokens.
  std::optional<int> max_encoder_tokens = {};
  // Maximum number of steps launched before the oldest is awaited. nullopt: 1 on the CPU, 2 on a
  // GPU.
  std::optional<int> max_steps_in_flight = {};
  CacheOptions cache = {};
  GraphOptions graphs = {};
  // Features between logits and tokens that sequences may request, and which logits are kept.
  // Default: none.
  LogitsOptions logits = {};
  // The drafter and its drafts. Default: no speculation.
  SpeculationOptions speculation = {};
  RankOptions ranks = {};
  DeviceOptions device = {};
  DebugOptions debug = {};
};

// Returns the options with the defaults that depend on the model, except the size of the cache.
// Errors: InvalidArgument or Unimplemented, naming the option or the field of the spec, or of the
// draft model's spec, that is not valid.
absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec);

}  // namespace reprise

#endif  // REPRISE_RUNNER_MODEL_RUNNER_OPTIONS_H_
