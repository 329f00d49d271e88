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

// A size of memory for KV blocks: a number of blocks, or a number of bytes. If ranks divide the model,
// NumBytes is the memory of one rank.
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
  // The first step with rows runs eagerly and sets each layer's scales, per layer or per head. The
  // largest key and the largest value of that step then map to the largest number of the cache's
  // dtype. For models that write keys by Step::Attend() or Step::Write().
  kFirstStep,
};

// The KV cache.
struct CacheOptions {
  // Number of tokens per block, at least 1. If ranks divide the keys, number of tokens per block and
  // rank, and a multiple of DebugOptions::context_interleave.
  int block_size = 16;
  // Size of the cache. NumBlocks includes the null block, and is at least 2. Default: enough for
  // max_num_seqs sequences of maximum length, but on a GPU at most 9/10 of the memory that graphs leave
  // free.
  BlockMemory size = {};
  // Host memory for the blocks of sequences that are swapped out (ScheduledBatch::swap_outs); pinned
  // on a GPU. NumBlocks includes host block 0, which is never used: at least 2. Default, or 0: none.
  BlockMemory swap = {};
  // nullopt: the model's dtype.
  std::optional<DType> dtype = {};
  // Layout of a block's memory. Change it only to share the cache with other kernels.
  KvOrder order = KvOrder::kNHD;
  // kPair, kPacked, kDiffKv or kKPacked (cache/storage/kv_layout.h). Layers with latents always store
  // latents.
  KvForm form = KvForm::kPair;
  // Scales of an fp8 cache (runner/kv_scales.h). Other caches have no scales.
  KvScaleShape scale_shape = KvScaleShape::kPerLayer;
  KvCalibration calibration = KvCalibration::kOff;

  bool swaps() const { return !std::holds_alternative<std::monostate>(swap); }
};

// Whether mixed steps, which have chunks of prompts in some rows and decodes in other rows, are
// replayed from graphs as decode steps are. If graphs are off, steps are padded as if they were
// replayed.
enum class MixedGraphs : int8_t {
  kOff,  // mixed steps run eagerly, and are not padded
  // Steps of at most the last of `mixed_tokens` are padded to the next captured number of tokens.
  // Model::Forward() is captured with rows of several tokens, too. These graphs take capture time and
  // memory.
  kOn,
};

// CUDA graphs of steps.
struct GraphOptions {
  // When graphs are captured. nullopt: kLazy on the CPU, where a capture costs nothing; kEager on a
  // GPU.
  std::optional<GraphSetOptions::Mode> mode = {};
  // Captured numbers of rows, strictly ascending, at most max_num_seqs. Empty:
  // DefaultGraphSizes(max_num_seqs).
  std::vector<int> sizes = {};
  // Maximum memory of all graphs, in bytes. Steps without a graph run eagerly. nullopt: no limit.
  std::optional<int64_t> memory_budget_bytes = {};
  // nullopt: kOn on a GPU; kOff on the CPU, where a replay saves no launches, and padded tokens take as
  // long as live tokens.
  std::optional<MixedGraphs> mixed = {};
  // Captured numbers of tokens of mixed steps, strictly ascending, at most max_num_tokens. Empty:
  // DefaultMixedTokens(max_num_tokens).
  std::vector<int> mixed_tokens = {};
};

// Ranks that a model is divided over (docs/distributed.md).
struct RankOptions {
  // All ranks, this process included; must outlive the runner. Null: one rank. All ranks create their
  // runners at the same time, with the same options, and launch the same batches. The cache has the
  // number of blocks that fits into the memory of every rank.
  Collectives* collectives = nullptr;

  // Number of ranks that divide the keys of every sequence (decode context parallelism). It must divide
  // the number of ranks; the other dimension of the grid (distributed/rank_grid.h) divides the weights,
  // and `collectives` spans the whole grid. 1: every rank has all keys. kAllRanks: all ranks divide
  // the keys. After resolution at least 1.
  //
  // Above 1: RunnerShape::block_size is cache.block_size times context_ranks. For models that
  // attend over ranks (runner/ranks/context_attention.h), whose layers have full attention or
  // windows. Excludes cascade, batch_invariance, calibration, and all drafts but chains that are
  // given or found in the text.
  static constexpr int kAllRanks = 0;
  int context_ranks = 1;

  bool divides_context() const { return context_ranks > 1; }
};

// Whether rounding may let a row's tokens depend on the other rows of its step.
enum class BatchInvariance : int8_t {
  kOff,
  // A row's logits are bitwise identical in all batches: only the row itself decides how its
  // attention is split, and matrix products use one algorithm for all numbers of rows. Slower. For
  // models that use Step::linears() for their products.
  kOn,
};

// Whether decode steps whose rows share a prefix of blocks read the prefix once for all rows.
enum class CascadeMode : int8_t {
  kOff,
  // Reads the prefix once if attention/merge/cascade_rule.h estimates that this is faster. Steps
  // without a shared prefix are the same as with kOff. Steps with a shared prefix use additional graphs,
  // captured for the numbers of rows for which it can be faster. These graphs take capture time and
  // memory.
  kAuto,
};

// The device and its kernels.
struct DeviceOptions {
  // The cudaStream_t of all steps, on the model's device. It must not be a default stream, and must
  // outlive the runner. nullopt: the runner creates a stream.
  std::optional<CUstream_st*> stream = {};
  // File that stores which kernels matrix products chose by timing on a GPU, so that processes with the
  // same options compute bitwise identical results (LinearContextOptions::choices_file). Empty: none.
  std::string linear_choices_file = {};
  BatchInvariance batch_invariance = BatchInvariance::kOff;
  // nullopt: kAuto on a GPU for 16-bit models, for whose kernels the costs are measured, unless
  // batch_invariance is on; otherwise kOff. The CPU path always reads a prefix row by row.
  std::optional<CascadeMode> cascade = {};
  // Measured costs of the GPU; nullopt: ProfileOf() its limits. They affect speed; with cascade and with
  // batch_invariance off, also rounding. With cascade on, all ranks must have the same cascade_map.
  std::optional<DeviceProfile> profile = {};
};

// Debug mode: whether replayed steps are compared with eager steps.
enum class ReplayCheck : int8_t {
  kOff,
  // After each replay, the step runs again eagerly on the same step arrays. The tensors of
  // Step::Watch() must be bitwise identical in both: q, k, v and out of every attention layer, the
  // logits, and what the model adds. Otherwise Await() returns Internal with the first tensor that
  // differs, in the order of the forward pass, and the place. This finds graphs that captured a host
  // value, or that read memory which has moved. Each step waits for the device. The graphs keep a copy
  // of all watched tensors of the largest step: leave memory for it (CacheOptions::size).
  kEveryReplay,
};

// Where attention is launched.
enum class AttentionLaunch : int8_t {
  kInGraphs,
  // Between captured pieces of a step, by the host, in each layer of each replay. For attention that
  // cannot be captured, and to compare; slower.
  kBetweenGraphs,
};

// Options for tests, debugging and comparison. The defaults are right for serving.
struct DebugOptions {
  ReplayCheck replay_check = ReplayCheck::kOff;
  // Gets the spans of each step (runner/trace/step_trace.h); must outlive the runner. Null: none.
  StepTrace* trace = nullptr;
  AttentionLaunch attention = AttentionLaunch::kInGraphs;
  // Captured numbers of rows of mixed steps, strictly ascending, at most max_num_seqs. Empty:
  // DefaultMixedSizes(max_num_seqs).
  std::vector<int> mixed_graph_sizes = {};
  // Whether ranks choose tokens from their shares of the vocabulary: they then gather candidates
  // instead of logits if the parameters of all rows allow it. For models with divided logits
  // (runner/ranks/divided_logits.h). nullopt: on the CPU, but not on a GPU, whose graphs contain the
  // gather.
  std::optional<bool> sample_shards = {};
  // Number of consecutive tokens that one rank keeps if ranks divide the keys; at least 1.
  int context_interleave = 1;
};

struct ModelRunnerOptions {
  // Number of slots, and maximum number of rows per step; at least 1.
  int max_num_seqs = 8;
  // Maximum number of tokens per step; at least max_num_seqs, or max_num_seqs * (1 + max_drafts) with
  // drafts.
  int max_num_tokens = 512;
  // Maximum number of tokens per sequence. nullopt: the model's max_position.
  std::optional<int> max_seq_len = {};
  // Maximum number of encoder tokens per sequence. nullopt: the model's max_encoder_position. A step
  // encodes at most max(max_encoder_tokens, max_num_tokens) tokens.
  std::optional<int> max_encoder_tokens = {};
  // Maximum number of steps launched before the oldest is awaited. nullopt: 1 on the CPU, 2 on a GPU.
  std::optional<int> max_steps_in_flight = {};
  CacheOptions cache = {};
  GraphOptions graphs = {};
  // Features between logits and tokens that sequences may request, and which logits are kept.
  // Default: nothing.
  LogitsOptions logits = {};
  // Drafts, and what proposes them. Default: none.
  SpeculationOptions speculation = {};
  RankOptions ranks = {};
  DeviceOptions device = {};
  DebugOptions debug = {};
};

// Fills in every default that depends on the model, except the size of the cache.
// Errors: InvalidArgument, naming the option or the field of the spec that does not fit; also fields
// of the draft model's spec.
absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec);

}  // namespace reprise

#endif  // REPRISE_RUNNER_MODEL_RUNNER_OPTIONS_H_
