// Options of a model runner, and the defaults that depend on the model.

#ifndef RUNNER_MODEL_RUNNER_OPTIONS_H_
#define RUNNER_MODEL_RUNNER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/device_profile.h"
#include "attention/merge/cascade_rule.h"
#include "base/dtype.h"
#include "cache/storage/kv_layout.h"
#include "graphs/graph_set_options.h"
#include "runner/kv_scales.h"
#include "runner/model.h"
#include "runner/sampling/logits_stage.h"
#include "runner/speculation/speculation_options.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class Collectives;
class StepTrace;

// Whether rounding may let a row's tokens depend on what else is in its step.
enum class BatchInvariance : int8_t {
  kOff,
  // A row gives the same bits whatever else is in the batch: attention is cut by the row alone, and
  // products use one algorithm for all numbers of rows. Slower. Holds for models whose products go
  // through Step::linears().
  kOn,
};

// Whether mixed steps, which have chunks of prompts in some rows and decodes in others, are
// replayed from graphs as decode steps are. With graphs switched off they are padded as if they
// were.
enum class MixedGraphs : int8_t {
  kOff,  // they run eagerly, and are not padded
  // Steps of up to the last of mixed_graph_tokens are padded to the next of them. Model::Forward()
  // is captured with rows of several tokens, too. These graphs take capture time and memory.
  kOn,
};

// A debug mode: whether replayed steps are compared with what they should compute.
enum class ReplayCheck : int8_t {
  kOff,
  // After each replay the step is run again, eagerly, over the same step arrays. What Step::Watch()
  // names must be the same bits in both: q, k, v and out of every attention layer, the logits, and
  // what the model adds. If not, the step fails: Await() returns Internal with the first tensor
  // that differs, in the order of the forward pass, and where. So a graph shows that has frozen a
  // value of the host or reads memory that moved. Each step waits for the device, and the graphs
  // keep a copy of all such tensors of the largest step; leave memory for it (num_blocks).
  kEveryReplay,
};

// Whether decode steps whose rows share a prefix of blocks read it once for all of them.
enum class CascadeMode : int8_t {
  kOff,
  // If attention/merge/cascade_rule.h estimates that it is faster. Steps without such a prefix are
  // the same as with kOff. Steps with one use additional graphs, captured for the numbers of rows
  // for which it can be faster; these graphs take capture time and memory.
  kAuto,
};

// Whether the scales of a quantised cache are taken from data.
enum class KvCalibration : int8_t {
  kOff,
  // The first step that has rows is run eagerly and sets each layer's scales, per layer or per
  // head, so that its largest key and value are the largest that the cache's dtype holds. For
  // models that write by Step::Attend() or Step::Write().
  kFirstStep,
};

// Which steps' logits a caller can read (StepResult::logits).
enum class StepLogits : int8_t {
  // Those of the newest step, which with one step in flight is the awaited one. With more, none.
  kOfNewest,
  // Every step's, until max_steps_in_flight further launches: a copy of the logits for each step
  // that may be in flight, [max_num_seqs, vocab_size].
  kOfEvery,
};

struct ModelRunnerOptions {
  // Slots, and the most rows of a step.
  int max_num_seqs = 8;
  // The most tokens of a step; at least max_num_seqs.
  int max_num_tokens = 512;
  // The longest sequence. nullopt: the model's max_position.
  std::optional<int> max_seq_len = {};
  // The longest input of the encoder. nullopt: the model's max_encoder_position. A step encodes at
  // most max(max_encoder_tokens, max_num_tokens) tokens.
  std::optional<int> max_encoder_tokens = {};
  int block_size = 16;
  // The KV cache: this many blocks, the null block included, or as many as fit into this many
  // bytes. Neither: enough for max_num_seqs of the longest sequences, but on a GPU at most 9/10 of
  // the memory that graphs leave free.
  std::optional<int> num_blocks = {};
  std::optional<int64_t> kv_memory_bytes = {};
  // Host memory for blocks of sequences that gave theirs up (ScheduledBatch::swap_outs): this many
  // blocks, host block 0 included, which is never used, or as many as fit into this many bytes.
  // Pinned on a GPU. Both 0: none.
  int num_swap_blocks = 0;
  int64_t swap_memory_bytes = 0;
  // Of the cache. nullopt: the model's dtype.
  std::optional<DType> kv_dtype = {};
  KvOrder kv_order = KvOrder::kNHD;
  // kPair, kPacked, kDiffKv or kKPacked (cache/storage/kv_layout.h); latents are stored as such.
  KvForm kv_form = KvForm::kPair;
  // Of an fp8 cache; others have none (runner/kv_scales.h).
  KvScaleShape kv_scale_shape = KvScaleShape::kPerLayer;
  KvCalibration kv_calibration = KvCalibration::kOff;

  // nullopt: kLazy on the CPU, where capturing costs nothing; kEager on a GPU.
  std::optional<GraphSetOptions::Mode> graphs = {};
  // Captured numbers of rows. Empty: DefaultGraphSizes(max_num_seqs).
  std::vector<int> graph_sizes = {};
  std::optional<int64_t> graph_memory_budget_bytes = {};
  // nullopt: kOn on a GPU; kOff on the CPU, where a replay saves no launches and padded tokens take
  // time as live ones do.
  std::optional<MixedGraphs> mixed_graphs = {};
  // Captured numbers of tokens of mixed steps, at most max_num_tokens, and of their rows. Empty:
  // DefaultMixedTokens(max_num_tokens), DefaultMixedSizes(max_num_seqs).
  std::vector<int> mixed_graph_tokens = {};
  std::vector<int> mixed_graph_sizes = {};
  // Off: attention runs between captured pieces of a step, launched by the host in each layer of
  // each replay. For attention that cannot be captured, and to compare; it costs launches.
  bool attention_in_graphs = true;
  ReplayCheck replay_check = ReplayCheck::kOff;

  // Steps launched before the oldest is awaited. nullopt: 1 on the CPU, 2 on a GPU.
  std::optional<int> max_steps_in_flight = {};

  StepLogits step_logits = StepLogits::kOfNewest;

  // The most tokens of a step, other than the last of each row, whose logits are computed
  // (RowLogits::kAll), 0 to max_num_tokens. Takes [max_earlier_logits, vocab_size] of the logits'
  // dtype, and with StepLogits::kOfEvery as much for each step that may be in flight and one more.
  int max_earlier_logits = 0;

  // What sequences may ask for between logits and tokens (docs/sampling.md). Nothing by default.
  LogitsOptions logits = {};

  // Drafts, and what proposes them. Takes logits of max_num_seqs * max_drafts more rows.
  SpeculationOptions speculation = {};

  BatchInvariance batch_invariance = BatchInvariance::kOff;

  // A file that keeps the choices that a GPU's matrix products make by timing, so that processes with
  // the same options compute the same bits (LinearContextOptions::choices_file). Empty: none.
  std::string linear_choices_file = {};

  // The cudaStream_t of all steps, of the model's device, not a default stream, and alive as long
  // as the runner. nullopt: a stream of the runner's own.
  std::optional<CUstream_st*> stream = {};

  // nullopt: kAuto on a GPU for 16-bit models, for whose kernels the costs are measured, unless
  // batch_invariance excludes it; else kOff. The CPU path always reads a prefix row by row.
  std::optional<CascadeMode> cascade = {};
  CascadeCosts cascade_costs = H200Profile().cascade_map;

  // The ranks that the model is divided over, this process among them; must outlive the runner.
  // Null: one rank. Ranks create their runners at the same time, with the same options; they then
  // have as many blocks as fit into the memory of each, and launch the same batches
  // (docs/distributed.md).
  Collectives* collectives = nullptr;

  // Whether those ranks divide the keys of every sequence among them (decode context parallelism):
  // each keeps runs of `context_interleave` tokens in turn. A block then has block_size tokens on
  // each rank, which must be a multiple of context_interleave, and block_size() of the runner is
  // that of all ranks together. For models that attend over ranks (runner/ranks/context_attention.h),
  // with layers of full attention or of windows. Excludes cascade, batch_invariance, kv_calibration,
  // and drafts but those of chains that are found in the text or given.
  bool divides_context = false;
  int context_interleave = 1;
  // With divides_context: how many ranks divide the keys of a sequence. It must divide the number of
  // ranks: the others of a grid (distributed/rank_grid.h) divide the weights, and `collectives` are
  // those of all. 0: all ranks divide the keys. A resolved value is at least 1.
  int context_ranks = 0;

  // Whether ranks choose tokens from their shares of the vocabulary, so that they gather candidates in
  // place of logits where the parameters of all rows allow it; else forward passes gather all logits.
  // For models with divided logits (runner/ranks/divided_logits.h). nullopt: on the CPU; not on a GPU,
  // where the gather is in the graph.
  std::optional<bool> sample_shards = {};

  // Gets the spans of each step (runner/step_trace.h); must outlive the runner. Null: none.
  StepTrace* trace = nullptr;
};

// `options` with every default that depends on the model filled in, except the size of the cache.
// Errors: InvalidArgument, naming the option or the field of the spec that does not fit; also of
// speculation.draft_model's.
absl::StatusOr<ModelRunnerOptions> ResolveRunnerOptions(const ModelRunnerOptions& options,
                                                        const ModelSpec& spec);

}  // namespace reprise

#endif  // RUNNER_MODEL_RUNNER_OPTIONS_H_
