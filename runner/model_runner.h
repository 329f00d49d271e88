// Runs steps of a model: refill, the model's forward pass as a replayed graph or eagerly, and
// sampling.
//
//   REPRISE_ASSIGN_OR_RETURN(auto runner, ModelRunner::Create(&model, {.max_num_seqs = 64}));
//   // A sequence joins slot 0 with a prompt; block 1 backs its first tokens:
//   const SlotJoin join[] = {{.slot = 0}};
//   const BlockTableUpdate update[] = {{.slot = 0, .column = 0, .block = 1}};
//   const ScheduledRow prefill[] = {{.slot = SlotId(0), .tokens = prompt}};
//   REPRISE_ASSIGN_OR_RETURN(StepResult first,
//                            runner->Step({.joins = join, .updates = update, .rows = prefill}));
//   // From then on the slot feeds itself, by a replayed graph:
//   const ScheduledRow decode[] = {{.slot = SlotId(0)}};
//   REPRISE_ASSIGN_OR_RETURN(StepResult second, runner->Step({.rows = decode}));
//
// Layers of one model may need different metadata and keep different keys (attention/layer_spec.h).
// kv_groups() lists the block tables; construct the BlockManager from it. Updates name their group.
//
// A sequence of a model with an encoder joins with num_encoder_tokens, its blocks of the cross
// groups, and the encoder's input; the batch that brings the input may bring the first row too:
//
//   const ScheduledEncode encode[] = {{.slot = SlotId(0), .tokens = source}};
//   runner->Step({.joins = join, .updates = update, .encodes = encode, .rows = prefill});
//
// A sequence may begin with copies of other sequences' blocks instead of computing them:
//
//   const BlockCopy copy[] = {{.src = 1, .dst = 2}};   // done before the step reads or writes them
//   runner->Step({.joins = join_behind_them, .updates = update, .copies = copy, .rows = rest});
//
// A sequence may leave its blocks to others and return later (ModelRunnerOptions::num_swap_blocks):
//
//   const BlockCopy out[] = {{.src = 1, .dst = 1}};   // block 1 of the cache to host block 1
//   runner->Step({.leaves = slot_0, .joins = other, .updates = update, .swap_outs = out, ...});
//   const BlockCopy in[] = {{.src = 1, .dst = 5}};    // host block 1 to block 5 of the cache
//   runner->Step({.joins = join_behind_them, .updates = update, .swap_ins = in, .rows = rest});
//
// A step may propose drafts for a row and verify them: one step, several tokens
// (ModelRunnerOptions::speculation, docs/speculation.md):
//
//   const ScheduledRow speculate[] = {{.slot = SlotId(0), .num_drafts = 4}};
//   REPRISE_ASSIGN_OR_RETURN(StepResult third, runner->Step({.rows = speculate}));
//   third.NewTokens(0);   // 1 to 5 tokens
//
// Until such a step is awaited, the host knows the sequence's length only from above: blocks must
// be there for all of its tokens, and no row may bring tokens of the host.
//
// One stream orders all of it, so a block on either side may be used again by the next batch.
//
// Models that take embeddings (ModelSpec::input_embedding_dim) get those of images and the like in
// place of those of the tokens at their places; positions of several dimensions come with the row:
//
//   const ScheduledRow prefill[] = {{.slot = SlotId(0), .tokens = prompt, .positions = positions}};
//   const ScheduledEmbeddings image[] = {{.row = 0, .first_token = 4, .rows = rows}};
//   runner->Step({.joins = join, .updates = update, .rows = prefill, .embeddings = image});
//
// The runner owns everything that a captured graph reads: slot state, step arrays, KV cache,
// logits, work maps. It does not decide which sequences take part (Scheduler) or which blocks they
// use (BlockManager): the batch specifies both.
//
// A step is pipelined: Launch() returns when the step is enqueued; Await() returns when its tokens
// are known. Up to max_steps_in_flight() may be launched before the oldest is awaited, since rows
// without tokens take their slot's last token on the device.
//
// Errors. A step fails in one of three places:
//
//   Launch() returns an error   the batch was refused; nothing has changed
//   Await() returns an error    the step failed (the model's forward pass, memory, a broken row, a
//                               replay that ReplayCheck finds wrong):
//                               the keys and tokens of its rows are undefined, so their sequences
//                               must leave; those of other sequences are as they were
//   status() is an error        the device has failed: no sequence can go on
//
// Thread safety: none; one owner. The model must outlive the runner.

#ifndef RUNNER_MODEL_RUNNER_H_
#define RUNNER_MODEL_RUNNER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/layer_classes.h"
#include "base/staging_ring.h"
#include "cache/kv_group.h"
#include "cache/storage/block_store.h"
#include "cache/storage/kv_cache.h"
#include "graphs/graph_set.h"
#include "graphs/step_buffers.h"
#include "runner/cache_plan.h"
#include "runner/device/device_driver.h"
#include "runner/device/device_timer.h"
#include "runner/device_spans.h"
#include "runner/draft_model.h"
#include "runner/draft_trees.h"
#include "runner/draft_verification.h"
#include "runner/encoder_pass.h"
#include "runner/head_drafts.h"
#include "runner/head_model.h"
#include "runner/kv_scales.h"
#include "runner/model.h"
#include "runner/model_runner_options.h"
#include "runner/ranks/context_rows.h"
#include "runner/ranks/shard_sampler.h"
#include "runner/replay_check.h"
#include "runner/sampling/logits_stages.h"
#include "runner/slots/embedding_rows.h"
#include "runner/slots/scheduled_batch.h"
#include "runner/slots/slot_mirror.h"
#include "runner/slots/step_delta_layout.h"
#include "runner/step_cascade.h"
#include "runner/step_embeddings.h"
#include "runner/step_memory.h"
#include "runner/step_metadata.h"
#include "runner/step_trace.h"
#include "runner/step_watch.h"

namespace reprise {

// A launched step.
struct StepTicket {
  int64_t step = 0;
};

struct StepResult {
  // One per row, in the batch's order: the newest token; kNotSampled for rows with
  // RowOutput::kNone, kNanRow for rows whose logits leave nothing to choose: their sequences must
  // leave. Valid until max_steps_in_flight() further launches.
  absl::Span<const int32_t> tokens;
  // Of steps with drafts, else empty: how many new tokens each row has, and those, in rows of
  // 1 + max_drafts(). See NewTokens().
  absl::Span<const int32_t> num_new_tokens = {};
  absl::Span<const int32_t> new_tokens = {};
  // [rows, vocab_size] of the runner's logits dtype: as the model gave them, or, if they are not
  // copies (StepLogits), as the stages between them and the tokens left them. Valid
  // until the next launch, or as StepLogits says. Undefined if they are not kept: with several
  // steps in flight, unless ModelRunnerOptions::step_logits asks for them.
  at::Tensor logits;
  // By row, of the token that was chosen, or of ScheduledRow::next_token. Those of rows whose
  // sequences did not ask are undefined. Empty if ModelRunnerOptions::logits does not provide for
  // them. Valid as long as `tokens`.
  RowLogProbsView log_probs;
  // Of the tokens before the last of rows with RowLogits::kAll: all such tokens of the first such
  // row, then those of the next. [num_earlier_logits, vocab_size]; no stage changes them. Undefined
  // as `logits` is, or if there are none. Valid as long as `logits`.
  at::Tensor earlier_logits = {};
  // The same for log-probabilities, each of the token that follows in the row.
  RowLogProbsView earlier_log_probs = {};
  GraphDecision decision;

  // A row's new tokens, in order: as many of its drafts as were accepted, and one more. Empty for
  // kNotSampled and kNanRow.
  absl::Span<const int32_t> NewTokens(int row) const;
};

// Memory of the device, as ModelRunner::Create() measured it.
struct MemoryUse {
  int64_t step_bytes = 0;   // slots, step arrays, logits
  int64_t eager_bytes = 0;  // most that tensors of the largest step take; 0 on the CPU
  int64_t graph_bytes = 0;  // estimate for all graphs; 0 on the CPU
  // Free before the cache was allocated, with nothing of the three above in use but step_bytes;
  // nullopt on the CPU.
  std::optional<int64_t> free_bytes = {};
  int64_t cache_bytes = 0;
  int64_t swap_bytes = 0;  // of the host
};

// What steps take, as ModelRunner::Create() measured it: eagerly, without a prefix.
struct StepTimes {
  int num_tokens = 0;     // of the largest step
  double largest_us = 0;  // of it
  double least_us = 0;    // of a step of one token, which reads the weights all the same
};

class ModelRunner {
 public:
  // Allocates, measures what the largest step takes, sizes the cache and, in
  // GraphSetOptions::Mode::kEager, captures. `driver`: of the model's device; null: the device's
  // own (MakeDeviceDriver()). Errors: InvalidArgument naming the option or the spec's field;
  // ResourceExhausted if memory does not suffice; whatever the model's forward pass returns.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(
      Model* model, const ModelRunnerOptions& options,
      std::unique_ptr<DeviceDriver> driver = nullptr);
  ~ModelRunner();

  // Enqueues a step. An empty batch is legal. Errors, with nothing changed: InvalidArgument for a
  // batch that does not fit: slots out of range or twice, more rows, tokens, updates or earlier
  // logits than the options allow, a sequence beyond max_seq_len, a position without a block in one
  // of the groups, token ids outside the vocabulary, embeddings or positions that the model does
  // not take; FailedPrecondition if max_steps_in_flight() steps are in flight, or the device has
  // failed.
  absl::StatusOr<StepTicket> Launch(const ScheduledBatch& batch);

  // Blocks until the step's tokens are known. Steps are awaited in the order of their launch.
  // Errors: FailedPrecondition, with nothing changed, for another step than the oldest in flight;
  // else the step has failed: what the model returned, the device's error, or Internal if the
  // device found rows that it could not serve.
  absl::StatusOr<StepResult> Await(StepTicket ticket);

  // Launch() and Await().
  absl::StatusOr<StepResult> Step(const ScheduledBatch& batch);

  // InvalidArgument, naming `argument`, unless all ids are in [0, vocab_size).
  absl::Status CheckTokens(std::string_view argument, absl::Span<const int32_t> tokens) const;

  // InvalidArgument, naming `argument`, unless the rows can be ScheduledEmbeddings::rows.
  absl::Status CheckEmbeddings(std::string_view argument, const EmbeddingRows& rows) const;

  // InvalidArgument, naming the parameter, unless sequences may ask for this
  // (ModelRunnerOptions::logits). Its slot does not matter.
  absl::Status CheckLogitsRequest(const LogitsRequest& request) const {
    return stages_->CheckRequest(request);
  }

  // OK, or why no further step can run. What the device does not know yet is not in it.
  const absl::Status& status() const { return status_; }

  // With its index, and the stream of all steps.
  c10::Device device() const { return driver_->device(); }
  c10::Stream stream() const { return driver_->stream(); }

  int max_num_seqs() const { return options_.max_num_seqs; }
  int max_num_tokens() const { return options_.max_num_tokens; }
  int max_seq_len() const { return *options_.max_seq_len; }
  int max_steps_in_flight() const { return *options_.max_steps_in_flight; }
  int max_encoder_tokens() const { return *options_.max_encoder_tokens; }
  int max_drafts() const { return options_.speculation.max_drafts; }  // of a row; 0: none
  // Captured numbers of drafts, ascending.
  absl::Span<const int> graph_num_drafts() const { return options_.speculation.graph_num_drafts; }
  int num_position_dims() const { return spec_.num_position_dims; }
  // Of all inputs that one step encodes.
  int max_encoder_step_tokens() const {
    return max_encoder_tokens() == 0 ? 0 : std::max(max_encoder_tokens(), max_num_tokens());
  }
  int num_blocks() const { return num_blocks_; }
  // Blocks of host memory for swaps, host block 0 included; 0: none.
  int num_swap_blocks() const { return swap_store_ ? swap_store_->num_blocks() : 0; }
  // Of a block over all layers: what a swap or a copy of it moves.
  int64_t bytes_per_block() const { return block_store_->bytes_per_block(); }
  int max_blocks() const { return max_blocks_; }  // columns of each group's table
  int block_size() const { return options_.block_size; }
  // At least one: what a block manager keeps for each sequence.
  absl::Span<const KvGroupSpec> kv_groups() const { return classes_.groups; }
  const GraphReport& graph_report() const { return graphs_->report(); }
  // Whether steps read common prefixes once, and why not; null if none ever does.
  const StepCascade* cascade() const { return cascade_.has_value() ? &*cascade_ : nullptr; }
  // Whether tokens are chosen from shares of the vocabulary (ModelRunnerOptions::sample_shards).
  bool samples_shards() const { return shards_ != nullptr; }
  KvCache& kv_cache() { return *kv_cache_; }
  const MemoryUse& memory_use() const { return memory_use_; }
  // By the device's clock. Measured for runners that swap, which must weigh it; else nullopt.
  const std::optional<StepTimes>& step_times() const { return step_times_; }
  // The scales of each layer of the model, to read, or to overwrite on stream(); null if the cache
  // is not quantised.
  const KvScales* kv_scales() const { return kv_scales_.has_value() ? &*kv_scales_ : nullptr; }

 private:
  struct Constants;  // what captured steps hold by value
  // Tokens on their way to the host, in a ring of max_steps_in_flight() + 1.
  struct Output {
    int32_t* tokens = nullptr;  // [max_num_seqs], then the number of faults
    int32_t* device_tokens = nullptr;
    std::unique_ptr<Fence> written;
    std::vector<at::Tensor> logits = {};  // [i]: of i rows; empty if they are not kept
    at::Tensor earlier_logits = {};       // [max_earlier_logits, vocab_size], likewise
    int num_rows = 0;
    int num_earlier_logits = 0;
    // Of steps with drafts, in the same memory as the tokens: [max_num_seqs] numbers of new tokens,
    // then [max_num_seqs, 1 + max_drafts] the tokens.
    bool has_drafts = false;
    bool is_verified_in_graph = false;  // the replay verifies them
    std::vector<UnsettledRow> unsettled = {};
    GraphDecision decision = {};
    absl::Status status = {};
  };

  ModelRunner(Model* model, const ModelRunnerOptions& options, LayerClasses classes,
              std::unique_ptr<DeviceDriver> driver);
  absl::Status Allocate();
  absl::Status SizeCache();
  absl::Status AllocateSwapStore();
  bool swaps() const { return options_.num_swap_blocks > 0 || options_.swap_memory_bytes > 0; }
  absl::Status RunLargestStep();
  // A step of so many tokens in rows as long as they may be; their blocks are the null block. Marks
  // 0 and 1 of `timer` are around it, unless it is null.
  absl::Status RunStepOf(int num_rows, int num_tokens, DeviceTimer* timer = nullptr);
  absl::StatusOr<double> TimeStepOf(int num_rows, int num_tokens, DeviceTimer* timer);
  absl::Status TimeSteps();
  void MakeCascade();
  absl::Status AllocateSpeculation();
  absl::Status AllocateDraftModel(std::optional<DType> kept_logits_dtype);
  absl::Status AllocateRings();
  absl::Status AllocateCache(const CachePlan& plan, int num_blocks);
  absl::Status CaptureGraphs();
  // Work in which this rank may fail alone, while the others wait for it in a collective: they are
  // told why. Not for what ranks agree on, which is an error of all.
  absl::Status TellingOthers(absl::FunctionRef<absl::Status()> work);
  void TellOthers(const absl::Status& failure);
  // With ranks on GPUs: returns when the steps of all of them are done.
  absl::Status MeetBeforeCapture();

  struct StepVariant {
    const KvScales* calibrated = nullptr;  // the scales that the step sets, or null
    StepWatch* watch = nullptr;            // sees its tensors, or null
    bool runs_draft_model = false;         // over the step's tokens, too
    bool proposes_drafts = true;           // false: they are there
    bool verifies_drafts = false;          // at the end, if refill names an output
  };
  // The work of a step at `key`: drafts, metadata, forward pass, logits in place.
  std::function<absl::Status()> MakeStep(const GraphKey& key, const StepVariant& variant) const;
  std::function<absl::Status()> MakeDrafts(const GraphKey& key) const;
  // Whether a step runs the draft model over its tokens: chunks of prompts.
  bool RunsDraftModel(const GraphKey& key, bool has_given_tokens) const;
  // That of a graph.
  std::function<absl::Status()> MakeCapturedStep(const GraphKey& key) const;
  DType logits_dtype() const;
  SlotLimits Limits() const;
  EmbeddingFormat embedding_format() const;
  absl::Span<const KvLayer> kv_layers() const;  // one per layer of the model
  int num_model_layers() const { return static_cast<int>(model_->spec().layers.size()); }
  bool speculates() const { return max_drafts() > 0; }
  // Rejection sampling needs what drafts were drawn from.
  bool keeps_draft_logits() const;
  // Heads with layers are one, too.
  bool has_draft_model() const {
    return options_.speculation.draft_model != nullptr || heads_attend();
  }
  bool heads_attend() const {
    const DraftHeads* const heads = options_.speculation.heads;
    return heads != nullptr && !heads->layers().empty();
  }

  // The batch as the stages between logits and tokens see it, in memory of the runner.
  LogitsBatch LogitsBatchOf(const ScheduledBatch& batch);
  absl::Status CheckLogits(const ScheduledBatch& batch, const LogitsBatch& logits) const;
  // Brings slots and step arrays up to date with the batch.
  absl::Status Prepare(const ScheduledBatch& batch, const LogitsBatch& logits,
                       const StepShape& shape, int common_prefix_len, Output& output);
  // Enqueues encoder, forward pass and sampling.
  absl::Status Compute(const ScheduledBatch& batch, const StepDemand& demand, Output& output);
  absl::Status KeepLogits(const Output& output);
  // Log-probabilities of known tokens, if the step has rows that ask for them.
  absl::Status ScoreTokens(const Output& output);
  // Chooses tokens, with the stages that the step needs before and after.
  absl::Status ChooseTokens(const StepDemand& demand, const Output& output);
  // Whether the graph that is about to be replayed verifies the step's drafts. Not if stages come
  // before, if the graph is captured only now, which runs its work, or if the step is run again to be
  // compared.
  bool VerifiesInGraph(const Output& output) const;
  // Where tokens are kept for drafters that read histories; null without one.
  PlaceTokens place_tokens() const;
  // Results of a step with drafts, in the memory of the output.
  VerifiedOutput ResultsOf(int32_t* device_tokens) const;
  // Whether the forward pass of a step at `key` leaves its logits divided over the ranks.
  bool LeavesLogits(const GraphKey& key) const { return shards_ != nullptr && key.num_drafts == 0; }
  // Whether tokens are chosen from them as they are; if not, they are gathered before.
  bool SamplesShards(const Output& output) const;
  // Without stages. With drafts: of all their places, and verifies them.
  absl::Status Sample(const LogitsStep& step, const StepDemand& demand, const Output& output);
  // Tells the mirror what became of the step's drafts.
  void Settle(const Output& output);
  at::Tensor LogitsOf(const Output& output) const;
  // Moves the batch's blocks to and from the host, and copies those of the cache.
  absl::Status MoveBlocks(const ScheduledBatch& batch);
  at::Tensor EarlierLogitsOf(const Output& output) const;
  // The part of the step that is being launched is enqueued.
  void EndPart(DevicePart part) {
    if (device_spans_ != nullptr) device_spans_->End(IndexOf(num_launched_), part);
  }
  int IndexOf(int64_t step) const {
    return static_cast<int>(step % static_cast<int64_t>(outputs_.size()));
  }
  absl::Status Refill(const ScheduledBatch& batch, const StepShape& shape, const GraphKey& key,
                      int common_prefix_len, const Output& output);
  // Runs the step that `decision` names; the decision as it came out.
  absl::StatusOr<GraphDecision> RunStep(const GraphDecision& decision, const StepShape& shape);
  // Runs the step that was replayed eagerly, and compares.
  absl::Status CheckReplay(const GraphKey& key, const StepShape& shape);
  // Of what captured steps read, as it is now.
  Fingerprint MakeFingerprint(int num_blocks) const;

  Model* model_;
  ModelSpec spec_;              // the model's, with the layers of a draft model after its own
  ModelRunnerOptions options_;  // resolved
  LayerClasses classes_;
  int max_blocks_ = 0;        // of a sequence
  int num_blocks_ = 0;        // of the cache
  int num_cache_blocks_ = 0;  // of the one that is allocated: fewer while memory is measured
  MemoryUse memory_use_;
  std::optional<StepTimes> step_times_;
  absl::Status status_;

  std::unique_ptr<DeviceDriver> driver_;
  std::unique_ptr<StepMemory> memory_;
  std::unique_ptr<ContextRows> context_;  // null: this rank has all keys
  std::unique_ptr<ShardSampler> shards_;  // null: forward passes give whole logits
  std::optional<KvCache> kv_cache_;
  std::optional<KvScales> kv_scales_;      // of a quantised cache
  bool calibrates_ = false;                // the next step with rows sets them
  std::optional<BlockStore> block_store_;  // the cache's blocks, to copy
  std::optional<BlockStore> swap_store_;   // blocks of host memory; none: no swaps
  std::unique_ptr<StepMetadata> metadata_;
  std::vector<int> model_classes_;                   // of the model's own layers
  std::unique_ptr<DraftModel> draft_model_;          // null: there is none
  std::unique_ptr<DraftTrees> trees_;                // null: drafts are chains
  std::unique_ptr<HeadDrafts> heads_;                // null: there are none without layers
  std::unique_ptr<HeadModel> head_model_;            // null: there are none with layers
  std::unique_ptr<DraftVerification> verification_;  // null: no drafts
  std::unique_ptr<StepEmbeddings> embeddings_;       // null: the model takes token ids only
  std::unique_ptr<EncoderPass> encoder_;             // null: the model has none
  std::shared_ptr<const Constants> constants_;
  Fingerprint fingerprint_;                 // of the constants
  std::unique_ptr<ReplayChecker> checker_;  // null: replays are not checked
  std::unique_ptr<GraphSet> graphs_;        // after all that its graphs read

  std::optional<SlotMirror> mirror_;
  std::unique_ptr<LogitsStages> stages_;
  std::vector<int32_t> sample_slot_;   // of the batch's rows; -1: without a token
  std::vector<int32_t> scored_slots_;  // of the batch's rows that are scored
  std::vector<AllowedTokens> masks_;   // of the batch
  std::optional<StepCascade> cascade_;
  StepDeltaCapacity delta_capacity_;
  std::optional<MappedBuffer> delta_memory_;
  std::optional<StagingRing> delta_ring_;

  std::optional<MappedBuffer> output_memory_;
  int64_t output_stride_ = 0;  // int32s from output to output
  std::vector<Output> outputs_;
  std::unique_ptr<DeviceSpans> device_spans_;  // null: no trace
  int64_t num_launched_ = 0;
  int64_t num_awaited_ = 0;
};

}  // namespace reprise

#endif  // RUNNER_MODEL_RUNNER_H_
