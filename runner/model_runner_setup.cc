// The ModelRunner's part before the first step: memory, the size of the cache, and graphs.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "distributed/agreement.h"
#include "distributed/collectives.h"
#include "distributed/rank_grid.h"
#include "distributed/share.h"
#include "runner/model_runner.h"
#include "runner/model_runner_options.h"
#include "runner/ranks/rank_options.h"

namespace reprise {

// Of what a rank does before its first step, products timed and graphs captured: no other rank
// that is alive takes longer.
constexpr absl::Duration kSetUpLimit = absl::Minutes(10);

namespace {

// Of the ranks that divide the keys. REQUIRES: resolved options.
Ranks ContextOf(const ModelRunnerOptions& options) {
  return PlaceInGrid(RanksOf(options.collectives), options.context_ranks).context;
}

// The model's, and those of a draft model after its own. Sinks count once: on the first of ranks that
// divide the keys.
ModelSpec SpecOf(const Model& model, const ModelRunnerOptions& options) {
  ModelSpec spec = model.spec();
  if (const Model* const draft = options.speculation.draft_model) {
    spec = WithLayersOf(spec, draft->spec());
  }
  if (const DraftHeads* const heads = options.speculation.heads) {
    spec = WithLayersOf(spec, HeadSpecOf(*heads, spec));
  }
  if (options.divides_context && ContextOf(options).rank != 0) {
    for (LayerSpec& layer : spec.layers) layer.params.sinks = nullptr;
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    Model* model, const ModelRunnerOptions& options, std::unique_ptr<DeviceDriver> driver) {
  const ModelSpec& spec = model->spec();
  const absl::StatusOr<ModelRunnerOptions> made_options = ResolveRunnerOptions(options, spec);
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(options.collectives, made_options.status()));
  ModelRunnerOptions resolved = *made_options;
  // Ranks with unlike options would wait for each other in unlike steps.
  REPRISE_RETURN_IF_ERROR(
      CheckSameTextOverRanks(options.collectives, RankOptionsText(resolved, spec)));
  REPRISE_ASSIGN_OR_RETURN(
      resolved.cascade,
      CascadeOverRanks(options.collectives, *resolved.cascade, SpecOf(*model, resolved).layers));
  const auto allocate = [&]() -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
    REPRISE_ASSIGN_OR_RETURN(LayerClasses classes,
                             CollectClassesWithDrafter(SpecOf(*model, resolved).layers,
                                                       static_cast<int>(spec.layers.size())));
    if (classes.num_groups() < 1 || classes.num_groups() > kMaxKvGroups) {
      return absl::UnimplementedError(
          absl::StrCat("the layers of the model's spec must make 1 to ", kMaxKvGroups,
                       " KV groups (attention/layer_classes.h): got ", classes.num_groups()));
    }
    if (driver == nullptr) {
      const bool invariant = resolved.batch_invariance == BatchInvariance::kOn;
      REPRISE_ASSIGN_OR_RETURN(
          driver,
          MakeDeviceDriver(spec.device, {.linears = {.deterministic = invariant,
                                                     .choices_file = resolved.linear_choices_file},
                                         .stream = resolved.stream}));
    }
    auto runner = std::unique_ptr<ModelRunner>(
        new ModelRunner(model, resolved, std::move(classes), std::move(driver)));
    // On the stream of the steps, so that what is filled here is there when they read it.
    REPRISE_RETURN_IF_ERROR(
        CatchTorch([&] { return runner->driver_->OnStream([&] { return runner->Allocate(); }); }));
    return runner;
  };
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = allocate();
  // Ranks run the first forward passes together: a rank that has failed is not waited for there.
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(options.collectives, runner.status()));
  ModelRunner& made = **runner;
  const auto set_up = [&]() -> absl::Status {
    if (made.shards_ != nullptr && made.driver_->device().is_cuda()) {
      REPRISE_RETURN_IF_ERROR(made.TellingOthers([&] {
        return made.driver_->OnStream([&] { return made.shards_->WarmUp(made.memory_->logits()); });
      }));
    }
    REPRISE_RETURN_IF_ERROR(made.SizeCache());
    made.mirror_.emplace(made.Limits());
    return made.CaptureGraphs();
  };
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
    return made.driver_->OnStream([&] {
      return options.collectives == nullptr ? set_up()
                                            : options.collectives->AwaitDevice(set_up, kSetUpLimit);
    });
  }));
  return runner;
}

ModelRunner::ModelRunner(Model* model, const ModelRunnerOptions& options, LayerClasses classes,
                         std::unique_ptr<DeviceDriver> driver)
    : model_(model),
      spec_(SpecOf(*model, options)),
      options_(options),
      classes_(std::move(classes)),
      max_blocks_((std::max(*options.max_seq_len, *options.max_encoder_tokens) - 1) /
                      options.block_size +
                  1),
      driver_(std::move(driver)) {}

ModelRunner::~ModelRunner() {
  // Steps in flight may still read the memory that is freed: waits for them.
  while (num_awaited_ < num_launched_) {
    outputs_[num_awaited_++ % outputs_.size()].written->Wait().IgnoreError();
  }
}

absl::Status ModelRunner::Allocate() {
  const ModelSpec& spec = spec_;
  const bool invariant = options_.batch_invariance == BatchInvariance::kOn;
  if (options_.divides_context) {
    const Ranks ranks = ContextOf(options_);
    context_ = std::make_unique<ContextRows>(
        ContextRowsOptions{.ranks = {.rank = ranks.rank,
                                     .world = ranks.world,
                                     .interleave = options_.context_interleave},
                           .block_size = options_.block_size,
                           .num_groups = classes_.num_groups(),
                           .max_rows = options_.max_num_seqs,
                           .max_tokens = options_.max_num_tokens,
                           .max_seq_len = max_seq_len(),
                           .device = driver_->device()});
  }
  const StepMetadataOptions metadata = {
      .layers = spec.layers,
      .classes = classes_,
      .within = spec.within,
      .dtype = spec.dtype,
      .device = driver_->device(),
      .max_rows = options_.max_num_seqs,
      .max_tokens = options_.max_num_tokens,
      .max_seq_len = context_ != nullptr ? context_->max_seq_len() : max_seq_len(),
      .max_encoder_tokens = *options_.max_encoder_tokens,
      .max_drafts = max_drafts(),
      .mode = invariant ? WorkMapMode::kDeterministic : WorkMapMode::kBalanced,
      // Nodes of a tree see their keys by masks, which no decode does.
      .decode_query_len = options_.speculation.shape == DraftShape::kTree ? 1 : 1 + max_drafts(),
      .shared_prefix =
          options_.cascade == CascadeMode::kAuto ? SharedPrefix::kTaken : SharedPrefix::kIgnored};
  REPRISE_ASSIGN_OR_RETURN(metadata_, StepMetadata::Create(metadata, driver_.get()));
  const DraftLevels levels = LevelsOf(options_.speculation.tree, max_drafts());
  REPRISE_ASSIGN_OR_RETURN(
      memory_,
      StepMemory::Allocate({.max_rows = options_.max_num_seqs,
                            .max_tokens = options_.max_num_tokens,
                            .max_blocks = max_blocks_,
                            .num_groups = classes_.num_groups(),
                            .max_earlier_logits = options_.max_earlier_logits,
                            .max_drafts = max_drafts(),
                            .history_len = speculates() ? max_seq_len() : 0,
                            .max_draft_query_len = has_draft_model() ? 1 + max_drafts() : 0,
                            .has_trees = options_.speculation.shape == DraftShape::kTree,
                            .max_draft_nodes = levels.max_width(),
                            .keeps_draft_logits = keeps_draft_logits(),
                            .num_position_dims = spec.num_position_dims,
                            .vocab_size = spec.vocab_size,
                            .logits_dtype = logits_dtype()},
                           driver_->device()));
  if (spec.input_embedding_dim > 0) {
    REPRISE_ASSIGN_OR_RETURN(
        embeddings_,
        StepEmbeddings::Allocate(options_.max_num_tokens, embedding_format(), driver_->device()));
  }
  if (*options_.max_encoder_tokens > 0) {
    REPRISE_ASSIGN_OR_RETURN(encoder_,
                             EncoderPass::Create({.metadata = metadata,
                                                  .max_step_tokens = max_encoder_step_tokens(),
                                                  .max_blocks = max_blocks_,
                                                  .block_size = options_.block_size,
                                                  .num_passes_in_flight = max_steps_in_flight()},
                                                 driver_.get()));
  }
  if (SizeOf(*options_.kv_dtype) == 1) {
    REPRISE_ASSIGN_OR_RETURN(
        kv_scales_, KvScales::Allocate(spec.layers, options_.kv_scale_shape, driver_->device()));
    calibrates_ = options_.kv_calibration == KvCalibration::kFirstStep;
  }
  model_classes_ = metadata_->ClassesOf(0, num_model_layers());
  REPRISE_RETURN_IF_ERROR(AllocateSpeculation());
  REPRISE_RETURN_IF_ERROR(AllocateRings());
  const auto allocate_mapped = [&](int64_t bytes) { return driver_->AllocateMapped(bytes); };
  const auto make_fence = [&] { return driver_->MakeFence(); };
  REPRISE_ASSIGN_OR_RETURN(stages_,
                           LogitsStages::Create({.logits = options_.logits,
                                                 .device = driver_->device(),
                                                 .logits_dtype = logits_dtype(),
                                                 .num_slots = options_.max_num_seqs,
                                                 .max_rows = options_.max_num_seqs,
                                                 .max_earlier_logits = options_.max_earlier_logits,
                                                 .vocab_size = spec.vocab_size,
                                                 .max_seq_len = max_seq_len(),
                                                 .max_steps_in_flight = max_steps_in_flight()},
                                                {allocate_mapped, make_fence}));
  sample_slot_.reserve(options_.max_num_seqs);
  scored_slots_.reserve(options_.max_num_seqs);
  masks_.reserve(options_.max_num_seqs);
  MakeCascade();
  std::vector<StepInput> inputs = {StepInput::kTokens};
  if (embeddings_ != nullptr) inputs.push_back(StepInput::kEmbeddings);
  std::function<absl::StatusOr<bool>(bool)> agree_over_budget;
  if (RanksOf(options_.collectives).world > 1) {
    agree_over_budget = [this](bool is_over) -> absl::StatusOr<bool> {
      REPRISE_ASSIGN_OR_RETURN(const int64_t least,
                               LeastOverRanks(options_.collectives, is_over ? 0 : 1));
      return least == 0;
    };
  }
  REPRISE_ASSIGN_OR_RETURN(
      graphs_, GraphSet::Create({.mode = *options_.graphs,
                                 .max_num_seqs = options_.max_num_seqs,
                                 .sizes = options_.graph_sizes,
                                 .num_drafts = options_.speculation.graph_num_drafts,
                                 .mixed_tokens = options_.mixed_graph_tokens,
                                 .mixed_sizes = options_.mixed_graph_sizes,
                                 .max_seq_len = max_seq_len(),
                                 .inputs = inputs,
                                 // Sampled tokens have no embeddings of a caller's.
                                 .least_embedding_query_len = 2,
                                 .mixed_inputs = GraphSetOptions::MixedInputs::kShared,
                                 .cascade = cascade_ ? GraphSetOptions::Cascade::kCaptured
                                                     : GraphSetOptions::Cascade::kNotCaptured,
                                 .least_cascade_seqs = cascade_ ? *cascade_->least_rows() : 1,
                                 .memory_budget_bytes = options_.graph_memory_budget_bytes,
                                 .agree_over_budget = std::move(agree_over_budget)},
                                &driver_->graphs()));

  if (options_.replay_check == ReplayCheck::kEveryReplay) {
    checker_ = std::make_unique<ReplayChecker>();
  }

  // Replays are compared with the logits among what they compute.
  if (DividedLogits* const divided = ShardSampler::LogitsOf(*model_);
      *options_.sample_shards && divided != nullptr && checker_ == nullptr) {
    REPRISE_ASSIGN_OR_RETURN(
        shards_,
        ShardSampler::Create({.logits = divided,
                              .max_rows = options_.max_num_seqs,
                              .max_logits = options_.max_num_seqs + options_.max_earlier_logits,
                              .logits_dtype = logits_dtype(),
                              .device = driver_->device()}));
  }

  return absl::OkStatus();
}

// What graphs and eager steps take is measured with a cache of the smallest size; the cache gets
// the rest.
absl::Status ModelRunner::SizeCache() {
  const absl::StatusOr<CachePlan> made = CachePlan::Create(options_, spec_, classes_);
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(options_.collectives, made.status()));
  const CachePlan& plan = *made;
  if (driver_->free_bytes().has_value()) {
    REPRISE_RETURN_IF_ERROR(TellingOthers([&]() -> absl::Status {
      REPRISE_RETURN_IF_ERROR(AllocateCache(plan, /*num_blocks=*/2));
      REPRISE_ASSIGN_OR_RETURN(memory_use_.eager_bytes,
                               driver_->MeasurePeakBytes([&] { return RunLargestStep(); }));
      return swaps() ? TimeSteps() : absl::OkStatus();
    }));
    if (*options_.graphs != GraphSetOptions::Mode::kOff) {
      REPRISE_RETURN_IF_ERROR(MeetBeforeCapture());
      REPRISE_RETURN_IF_ERROR(TellingOthers([&]() -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(
            memory_use_.graph_bytes,
            graphs_->EstimateBytes([this](const GraphKey& key) { return MakeCapturedStep(key); }));
        return absl::OkStatus();
      }));
    }
    kv_cache_.reset();
    memory_use_.free_bytes = driver_->free_bytes();
  }
  REPRISE_ASSIGN_OR_RETURN(
      const int64_t num_blocks,
      LeastOverRanks(options_.collectives,
                     plan.ChooseNumBlocks(memory_use_.free_bytes,
                                          memory_use_.eager_bytes + memory_use_.graph_bytes)));
  num_blocks_ = static_cast<int>(num_blocks);
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(
      options_.collectives, CatchTorch([&] { return AllocateCache(plan, num_blocks_); })));
  if (swaps() && !step_times_.has_value()) {
    REPRISE_RETURN_IF_ERROR(TellingOthers([&] { return TimeSteps(); }));
  }
  memory_use_.step_bytes = memory_->bytes() + stages_->device_bytes() +
                           (context_ == nullptr ? 0 : context_->bytes()) +
                           (shards_ == nullptr ? 0 : shards_->bytes()) +
                           (embeddings_ == nullptr ? 0 : embeddings_->bytes()) +
                           (draft_model_ == nullptr ? 0 : draft_model_->bytes()) +
                           (heads_ == nullptr ? 0 : heads_->bytes()) +
                           (head_model_ == nullptr ? 0 : head_model_->bytes()) +
                           (verification_ == nullptr ? 0 : verification_->bytes()) +
                           (trees_ == nullptr ? 0 : trees_->bytes());
  memory_use_.cache_bytes = num_blocks_ * plan.bytes_per_block();
  return AllocateSwapStore();
}

absl::Status ModelRunner::AllocateSwapStore() {
  if (!swaps()) return absl::OkStatus();
  absl::StatusOr<int64_t> own_blocks = options_.num_swap_blocks;
  if (options_.swap_memory_bytes > 0) {
    own_blocks = std::min<int64_t>(options_.swap_memory_bytes / bytes_per_block(),
                                   std::numeric_limits<int32_t>::max());
    if (*own_blocks < 2) {
      own_blocks = absl::InvalidArgumentError(absl::StrCat(
          "swap_memory_bytes must hold host block 0, which is never used, and one more: expected ",
          "at least ", 2 * bytes_per_block(), ", got ", options_.swap_memory_bytes));
    }
  }
  // Blocks of ranks with more heads are larger.
  REPRISE_ASSIGN_OR_RETURN(const int64_t num_swap_blocks,
                           LeastOverRanks(options_.collectives, own_blocks));
  absl::StatusOr<BlockStore> swap_store =
      BlockStore::Pinned(*block_store_, static_cast<int>(num_swap_blocks));
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(options_.collectives, swap_store.status()));
  swap_store_ = *std::move(swap_store);
  memory_use_.swap_bytes = num_swap_blocks * bytes_per_block();
  return absl::OkStatus();
}

// As many tokens as a step may have, and what its encoder may take before.
absl::Status ModelRunner::RunLargestStep() {
  if (encoder_ != nullptr) {
    const int max_tokens = max_encoder_tokens();
    const std::vector<int32_t> input(max_tokens, 0);
    std::vector<ScheduledEncode> encodes;
    const int num_inputs = std::min(max_encoder_step_tokens() / max_tokens, max_num_seqs());
    for (int i = 0; i < num_inputs; ++i) encodes.push_back({.slot = SlotId(i), .tokens = input});
    REPRISE_RETURN_IF_ERROR(encoder_->Run(encodes, *model_, kv_layers()));
  }
  return RunStepOf(max_num_seqs(), max_num_tokens());
}

absl::Status ModelRunner::RunStepOf(int num_rows, int num_tokens, DeviceTimer* timer) {
  std::vector<int32_t> query_start_loc = {0};
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> positions;
  for (int row = 0; row < num_rows; ++row) {
    const int num_left = num_tokens - query_start_loc.back() - (num_rows - 1 - row);
    seq_lens.push_back(std::min(num_left, max_seq_len()));
    query_start_loc.push_back(query_start_loc.back() + seq_lens.back());
    for (int i = 0; i < seq_lens.back(); ++i) positions.push_back(i);
  }
  memory_->FillLiveRows(query_start_loc, seq_lens, positions, max_encoder_tokens());
  const std::function<absl::Status()> step =
      MakeStep({.padded_num_seqs = num_rows,
                .padded_num_tokens = query_start_loc.back(),
                .max_query_len = seq_lens.front(),
                .input = embeddings_ == nullptr ? StepInput::kTokens : StepInput::kEmbeddings,
                .num_earlier_logits = timer == nullptr ? options_.max_earlier_logits : 0},
               {.runs_draft_model = seq_lens.front() > 1});
  if (timer != nullptr) timer->Mark(0);
  const absl::Status status = step();
  if (timer != nullptr) timer->Mark(1);
  memory_->Zero();
  return status;
}

absl::StatusOr<double> ModelRunner::TimeStepOf(int num_rows, int num_tokens, DeviceTimer* timer) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Fence> fence, driver_->MakeFence());
  REPRISE_RETURN_IF_ERROR(RunStepOf(num_rows, num_tokens, timer));
  fence->Arm();
  REPRISE_RETURN_IF_ERROR(fence->Wait());
  REPRISE_ASSIGN_OR_RETURN(const double ns, timer->NsBetween(0, 1));
  return ns / 1e3;
}

// A step of one token for the first time waits for the host, which looks for its products.
absl::Status ModelRunner::TimeSteps() {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceTimer> timer,
                           driver_->MakeTimer(/*num_marks=*/2));
  // As many as a step may have, but for sequences shorter than that.
  const int num_tokens = static_cast<int>(
      std::min(int64_t{max_num_tokens()}, int64_t{max_num_seqs()} * max_seq_len()));
  StepTimes times = {.num_tokens = num_tokens};
  REPRISE_ASSIGN_OR_RETURN(times.largest_us, TimeStepOf(max_num_seqs(), num_tokens, timer.get()));
  REPRISE_RETURN_IF_ERROR(TimeStepOf(1, 1, timer.get()).status());
  REPRISE_ASSIGN_OR_RETURN(times.least_us, TimeStepOf(1, 1, timer.get()));
  step_times_ = times;
  return absl::OkStatus();
}

// Only products of the captured shapes are timed: the first prompt of a shape must not wait for a
// search. They are timed now in each mode, also without graphs or with lazily captured ones: so all
// modes compute the same bits.
absl::Status ModelRunner::CaptureGraphs() {
  const auto make_step = [this](const GraphKey& key) { return MakeCapturedStep(key); };
  driver_->linears().SetTiming(LinearTiming::kOn);
  if (*options_.graphs != GraphSetOptions::Mode::kEager && driver_->device().is_cuda()) {
    for (const GraphKey& key : graphs_->keys()) {
      REPRISE_RETURN_IF_ERROR(TellingOthers([&] { return driver_->OnStream(make_step(key)); }));
    }
  }
  REPRISE_RETURN_IF_ERROR(MeetBeforeCapture());
  REPRISE_RETURN_IF_ERROR(
      TellingOthers([&] { return graphs_->CaptureAll(make_step, fingerprint_); }));
  driver_->linears().SetTiming(LinearTiming::kOff);
  return absl::OkStatus();
}

absl::Status ModelRunner::TellingOthers(absl::FunctionRef<absl::Status()> work) {
  const absl::Status status = CatchTorch(work);
  if (!status.ok()) TellOthers(status);
  return status;
}

void ModelRunner::TellOthers(const absl::Status& failure) {
  Collectives* const collectives = options_.collectives;
  // A failure of the collectives is known to all.
  if (RanksOf(collectives).world > 1 && collectives->status().ok()) collectives->Fail(failure);
}

// Collectives must not run elsewhere while one rank captures them (distributed/collectives.h).
absl::Status ModelRunner::MeetBeforeCapture() {
  if (options_.collectives == nullptr || driver_->device().is_cpu()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(options_.collectives->AwaitDevice([&] {
    driver_->stream().synchronize();
    return absl::OkStatus();
  }));
  return options_.collectives->Barrier();
}

DType ModelRunner::logits_dtype() const { return spec_.logits_dtype.value_or(spec_.dtype); }

EmbeddingFormat ModelRunner::embedding_format() const {
  const c10::Device device = driver_->device();
  return {.dim = spec_.input_embedding_dim,
          .dtype = spec_.dtype,
          .gpu = device.is_cuda() ? device.index() : kHostMemory};
}

bool ModelRunner::RunsDraftModel(const GraphKey& key, bool has_given_tokens) const {
  return has_draft_model() && key.max_query_len > 1 && (key.num_drafts == 0 || has_given_tokens);
}

SlotLimits ModelRunner::Limits() const {
  return {.num_slots = options_.max_num_seqs,
          .max_num_tokens = options_.max_num_tokens,
          .max_seq_len = max_seq_len(),
          .max_blocks = max_blocks_,
          .block_size = options_.block_size,
          .num_blocks = num_blocks_,
          .num_swap_blocks = num_swap_blocks(),
          .vocab_size = spec_.vocab_size,
          .max_earlier_logits = options_.max_earlier_logits,
          .max_drafts = max_drafts(),
          .has_drafter = options_.speculation.proposer != SpeculationOptions::Proposer::kNone,
          .has_trees = options_.speculation.shape == DraftShape::kTree,
          .groups = classes_.groups,
          .max_encoder_tokens = *options_.max_encoder_tokens,
          .max_encoder_step_tokens = max_encoder_step_tokens(),
          .embeddings = embedding_format(),
          .num_position_dims = num_position_dims(),
          .max_position = spec_.max_position};
}

void ModelRunner::MakeCascade() {
  StepCascadeOptions options = {.costs = options_.cascade_costs,
                                .num_slots = options_.max_num_seqs,
                                .max_blocks = max_blocks_,
                                .block_size = options_.block_size,
                                .max_seq_len = max_seq_len()};
  for (int i = 0; i < classes_.num_classes(); ++i) {
    if (!metadata_->TakesPrefix(i)) continue;
    const LayerClass& layer_class = classes_.classes[i];
    const LayerSpec& layer = spec_.layers[layer_class.first_layer];
    options.classes.push_back(
        {.layer = {.num_q_heads = layer.params.num_q_heads,
                   .num_kv_heads = layer.params.num_kv_heads,
                   .head_dim_qk = layer.params.head_dim_qk,
                   .head_dim_v = layer.params.head_dim_v,
                   .v_in_k = layer.v_in_k,
                   .bytes_per_element = static_cast<int>(SizeOf(*options_.kv_dtype)),
                   .tile_queries = metadata_->cascade_map(i).main.tile_queries},
         .num_layers = static_cast<int>(absl::c_count(classes_.class_of_layer, i))});
    if (!absl::c_linear_search(options.groups, *layer_class.kv_group)) {
      options.groups.push_back(*layer_class.kv_group);
    }
  }
  if (options.classes.empty()) return;
  cascade_.emplace(options);
  if (!cascade_->least_rows().has_value()) cascade_.reset();
}

absl::Status ModelRunner::AllocateRings() {
  const int num_slots = max_steps_in_flight() + 1;
  delta_capacity_ = {.num_slots = options_.max_num_seqs,
                     .max_updates = Limits().max_updates(),
                     .max_rows = options_.max_num_seqs,
                     .max_tokens = options_.max_num_tokens,
                     .num_position_dims = num_position_dims(),
                     .has_trees = trees_ != nullptr};
  REPRISE_ASSIGN_OR_RETURN(delta_memory_,
                           driver_->AllocateMapped(num_slots * StepDeltaBytes(delta_capacity_)));
  std::vector<std::unique_ptr<Fence>> read;
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(read.emplace_back(), driver_->MakeFence());
  }
  REPRISE_ASSIGN_OR_RETURN(delta_ring_,
                           StagingRing::Create(delta_memory_->host_bytes(), std::move(read)));

  // One token per row, and the number of faults; with drafts the number of new tokens of each row,
  // and those.
  const int64_t max_rows = options_.max_num_seqs;
  const int64_t output_size = max_rows + 1 + (speculates() ? max_rows * (2 + max_drafts()) : 0);
  output_stride_ = output_size;
  REPRISE_ASSIGN_OR_RETURN(
      output_memory_, driver_->AllocateMapped(num_slots * output_size * int64_t{sizeof(int32_t)}));
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Fence> written, driver_->MakeFence());
    Output output = {.tokens = output_memory_->host<int32_t>() + i * output_size,
                     .device_tokens = output_memory_->device<int32_t>() + i * output_size,
                     .written = std::move(written)};
    if (options_.step_logits == StepLogits::kOfEvery) {
      const at::Tensor logits = at::empty_like(memory_->logits());
      for (int rows = 0; rows <= max_num_seqs(); ++rows) {
        output.logits.push_back(logits.narrow(0, 0, rows));
      }
      output.earlier_logits = logits.narrow(0, max_num_seqs(), options_.max_earlier_logits);
    }
    if (speculates()) output.unsettled.reserve(options_.max_num_seqs);
    outputs_.push_back(std::move(output));
  }
  if (options_.trace == nullptr) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTimer> timer,
                           driver_->MakeTimer(DeviceSpans::NumMarks(num_slots)));
  device_spans_ = std::make_unique<DeviceSpans>(options_.trace, std::move(timer), num_slots);
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateSpeculation() {
  if (!speculates()) return absl::OkStatus();
  const int max_logits = options_.max_num_seqs + options_.max_earlier_logits;
  const std::optional<DType> kept_logits_dtype =
      keeps_draft_logits() ? std::optional<DType>(logits_dtype()) : std::nullopt;
  if (options_.speculation.shape == DraftShape::kTree) {
    REPRISE_ASSIGN_OR_RETURN(trees_, DraftTrees::Create({.tree = options_.speculation.tree,
                                                         .max_drafts = max_drafts(),
                                                         .max_num_seqs = options_.max_num_seqs,
                                                         .num_groups = classes_.num_groups(),
                                                         .driver = driver_.get()}));
  }
  if (heads_attend()) {
    REPRISE_ASSIGN_OR_RETURN(
        head_model_, HeadModel::Create(
                         {.heads = options_.speculation.heads,
                          .collectives = options_.collectives,
                          .of = &model_->spec(),
                          .memory = memory_.get(),
                          .max_num_seqs = options_.max_num_seqs,
                          .max_num_tokens = std::max(options_.max_num_tokens,
                                                     options_.max_num_seqs * (1 + max_drafts()))}));
  } else if (options_.speculation.heads != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(heads_, HeadDrafts::Create({.heads = options_.speculation.heads,
                                                         .collectives = options_.collectives,
                                                         .driver = driver_.get(),
                                                         .memory = memory_.get(),
                                                         .hidden_dim = spec_.hidden_dim,
                                                         .dtype = spec_.dtype,
                                                         .vocab_size = spec_.vocab_size,
                                                         .max_num_seqs = options_.max_num_seqs,
                                                         .max_drafts = max_drafts(),
                                                         .max_logits = max_logits,
                                                         .kept_logits_dtype = kept_logits_dtype}));
  }
  if (has_draft_model()) REPRISE_RETURN_IF_ERROR(AllocateDraftModel(kept_logits_dtype));
  DraftVerificationOptions verification = {.driver = driver_.get(),
                                           .memory = memory_.get(),
                                           .trees = trees_.get(),
                                           .heads = heads_.get(),
                                           .acceptance = options_.speculation.acceptance,
                                           .max_drafts = max_drafts(),
                                           .max_logits = max_logits};
  if (keeps_draft_logits()) {
    verification.draft_logits = heads_ != nullptr ? heads_->logits() : draft_model_->logits();
  }
  REPRISE_ASSIGN_OR_RETURN(verification_, DraftVerification::Create(verification));
  return absl::OkStatus();
}

bool ModelRunner::keeps_draft_logits() const {
  const SpeculationOptions& options = options_.speculation;
  return options.acceptance == DraftAcceptance::kRejection &&
         (options.draft_model != nullptr || options.heads != nullptr);
}

absl::Status ModelRunner::AllocateDraftModel(std::optional<DType> kept_logits_dtype) {
  REPRISE_ASSIGN_OR_RETURN(
      draft_model_,
      DraftModel::Create(
          {.model = head_model_ != nullptr ? head_model_.get() : options_.speculation.draft_model,
           .heads = head_model_.get(),
           .first_layer = num_model_layers(),
           .max_num_seqs = options_.max_num_seqs,
           .block_size = options_.block_size,
           .groups = classes_.groups,
           .driver = driver_.get(),
           .memory = memory_.get(),
           .metadata = metadata_.get(),
           .trees = trees_.get(),
           .attention_in_graphs = options_.attention_in_graphs,
           .kept_logits_dtype = kept_logits_dtype,
           .max_drafts = max_drafts()}));
  return absl::OkStatus();
}

}  // namespace reprise
