#include "reprise/runner/runner_setup.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/device_profile.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/drafting/draft_model.h"
#include "reprise/runner/drafting/head_model.h"
#include "reprise/runner/drafting/speculation_part.h"
#include "reprise/runner/parts/slot_refill.h"
#include "reprise/runner/parts/token_choice.h"
#include "reprise/runner/ranks/rank_options.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/speculation/draft_capability.h"
#include "reprise/runner/speculation/draft_levels.h"

namespace reprise {
namespace {

// Returns the ranks that shard the keys. REQUIRES: resolved options.
Ranks ContextOf(const ModelRunnerOptions& options) {
  return CoordinatesInGrid(RanksOf(options.ranks.collectives), options.ranks.context_ranks).context;
}

// Calls ResolveRunnerOptions(), and sets the profile of the device unless it is given.
absl::StatusOr<ModelRunnerOptions> ResolveWithDevice(const ModelRunnerOptions& given,
                                                     const ModelSpec& spec) {
  REPRISE_ASSIGN_OR_RETURN(ModelRunnerOptions options, ResolveRunnerOptions(given, spec));
  if (options.device.profile) return options;
  DeviceLimits limits;
  if (spec.device.is_cuda()) {
    REPRISE_ASSIGN_OR_RETURN(limits, DeviceLimitsOf(spec.device.index()));
  }
  options.device.profile = ProfileOf(limits);
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> RunnerSetup::Run(
    std::unique_ptr<DeviceDriver> driver) {
  Collectives* const collectives = given_.ranks.collectives;
  REPRISE_RETURN_IF_ERROR(ResolveOptions());
  const absl::Status allocated = Allocate(std::move(driver));
  // Ranks run the first forward passes together, so all ranks must stop here if one has failed.
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, allocated));
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
    return runner_->driver().OnStream(
        [&] { return runner_->ranks_.SetUp([&] { return SetUp(); }); });
  }));
  return std::move(runner_);
}

absl::Status RunnerSetup::ResolveOptions() {
  Collectives* const collectives = given_.ranks.collectives;
  const absl::StatusOr<ModelRunnerOptions> resolved =
      CatchTorchOr([&] { return ResolveWithDevice(given_, model_.spec()); });
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, resolved.status()));
  options_ = *resolved;
  const ModelSpec& spec = model_.spec();
  // Ranks with different options could run different steps, and deadlock.
  REPRISE_RETURN_IF_ERROR(CheckSameTextOverRanks(collectives, RankOptionsText(options_, spec)));
  REPRISE_ASSIGN_OR_RETURN(
      options_.device.cascade,
      CascadeOverRanks(collectives, *options_.device.cascade, SpecWithDrafter().layers));
  return absl::OkStatus();
}

ModelSpec RunnerSetup::SpecWithDrafter() const {
  ModelSpec spec = model_.spec();
  if (const Model* const draft = options_.speculation.draft_model()) {
    spec = WithLayersOf(spec, draft->spec());
  }
  if (const DraftHeads* const heads = options_.speculation.heads()) {
    spec = WithLayersOf(spec, HeadSpecOf(*heads, spec));
  }
  if (options_.ranks.shards_context() && ContextOf(options_).rank != 0) {
    for (LayerSpec& layer : spec.layers) layer.params.sinks = nullptr;
  }
  return spec;
}

RunnerShape RunnerSetup::MakeShape(const ModelSpec& spec, const LayerClasses& classes,
                                   const DeviceDriver& driver) const {
  const int max_encoder_tokens = *options_.max_encoder_tokens;
  const c10::Device device = driver.device();
  return {.max_num_seqs = options_.max_num_seqs,
          .max_num_tokens = options_.max_num_tokens,
          .max_seq_len = *options_.max_seq_len,
          .max_steps_in_flight = *options_.max_steps_in_flight,
          .vocab_size = spec.vocab_size,
          .block_size = options_.cache.block_size,
          .groups = classes.groups,
          .max_encoder_tokens = max_encoder_tokens,
          .max_encoder_step_tokens =
              max_encoder_tokens == 0 ? 0 : std::max(max_encoder_tokens, options_.max_num_tokens),
          .num_position_dims = spec.num_position_dims,
          .max_position = spec.max_position,
          .embeddings = {.dim = spec.input_embedding_dim,
                         .dtype = spec.dtype,
                         .gpu = device.is_cuda() ? device.index() : kHostMemory},
          .mask_words =
              options_.logits.allowed_tokens ? static_cast<int>(MaskWords(spec.vocab_size)) : 0,
          .max_earlier_logits = options_.logits.max_earlier_logits,
          .drafts = DraftCapabilityOf(options_.speculation, HeadsAttend(options_.speculation))};
}

ContextRowsOptions RunnerSetup::ContextOptions(const LayerClasses& classes,
                                               c10::Device device) const {
  const Ranks ranks = ContextOf(options_);
  return {.ranks = {.rank = ranks.rank,
                    .world = ranks.world,
                    .interleave = options_.debug.context_interleave},
          .block_size = options_.cache.block_size,
          .num_groups = classes.num_groups(),
          .max_rows = options_.max_num_seqs,
          .max_tokens = options_.max_num_tokens,
          .max_seq_len = *options_.max_seq_len,
          .device = device};
}

RunnerMemoryOptions RunnerSetup::MemoryOptions(const ModelSpec& spec, const LayerClasses& classes,
                                               c10::Device device) const {
  const SpeculationOptions& drafts = options_.speculation;
  const bool has_trees = drafts.shape == DraftShape::kTree;
  const bool invariant = options_.device.batch_invariance == BatchInvariance::kOn;
  const int max_seq_len = *options_.max_seq_len;
  // Maximum number of keys per sequence on one rank.
  const int max_attended_len = options_.ranks.shards_context()
                                   ? ContextRows(ContextOptions(classes, c10::kCPU)).max_seq_len()
                                   : max_seq_len;
  RunnerMemoryOptions memory = {.spec = spec,
                                .num_model_layers = static_cast<int>(model_.spec().layers.size()),
                                .classes = classes,
                                .block_size = options_.cache.block_size,
                                .has_histories = ReadsHistories(drafts)};
  memory.metadata = {
      .layers = spec.layers,
      .classes = classes,
      .within = spec.within,
      .dtype = spec.dtype,
      .device = device,
      .max_rows = options_.max_num_seqs,
      .max_tokens = options_.max_num_tokens,
      .max_seq_len = max_attended_len,
      .max_encoder_tokens = *options_.max_encoder_tokens,
      .max_drafts = drafts.max_drafts,
      .costs = options_.device.profile->tile_schedule,
      .mode = invariant ? TileScheduleMode::kDeterministic : TileScheduleMode::kBalanced,
      // Nodes of a tree read keys through masks, which decodes do not support.
      .decode_query_len = has_trees ? 1 : 1 + drafts.max_drafts,
      .shared_prefix = options_.device.cascade == CascadeMode::kAuto ? SharedPrefix::kTaken
                                                                     : SharedPrefix::kIgnored};
  memory.steps = {.max_rows = options_.max_num_seqs,
                  .max_tokens = options_.max_num_tokens,
                  .max_blocks = runner_->shape_.max_blocks(),
                  .num_groups = classes.num_groups(),
                  .max_earlier_logits = options_.logits.max_earlier_logits,
                  .max_drafts = drafts.max_drafts,
                  .history_len = ReadsHistories(drafts) ? max_seq_len : 0,
                  .max_draft_query_len = HasDraftLayers(drafts) ? 1 + drafts.max_drafts : 0,
                  .has_trees = has_trees,
                  .max_draft_nodes = LevelsOf(drafts.tree, drafts.max_drafts).max_width(),
                  .keeps_draft_logits = KeepsDraftLogits(drafts),
                  .num_position_dims = spec.num_position_dims,
                  .vocab_size = spec.vocab_size,
                  .logits_dtype = spec.logits_dtype.value_or(spec.dtype)};
  if (SizeOf(*options_.cache.dtype) == 1) memory.scales = options_.cache.scale_shape;
  return memory;
}

absl::Status RunnerSetup::Allocate(std::unique_ptr<DeviceDriver> driver) {
  const ModelSpec spec = SpecWithDrafter();
  REPRISE_ASSIGN_OR_RETURN(
      const LayerClasses classes,
      CollectClassesWithDrafter(spec.layers, static_cast<int>(model_.spec().layers.size())));
  if (classes.num_groups() < 1 || classes.num_groups() > kMaxKvGroups) {
    return absl::UnimplementedError(
        absl::StrCat("the layers of the model's spec must make 1 to ", kMaxKvGroups,
                     " KV groups (attention/layer_classes.h): got ", classes.num_groups()));
  }
  if (driver == nullptr) {
    const bool invariant = options_.device.batch_invariance == BatchInvariance::kOn;
    REPRISE_ASSIGN_OR_RETURN(
        driver, MakeDeviceDriver(spec.device,
                                 {.linears = {.deterministic = invariant,
                                              .choices_file = options_.device.linear_choices_file},
                                  .stream = options_.device.stream}));
  }
  runner_ = std::unique_ptr<ModelRunner>(new ModelRunner(options_.ranks.collectives));
  runner_->shape_ = MakeShape(spec, classes, *driver);
  const RunnerMemoryOptions memory = MemoryOptions(spec, classes, driver->device());
  REPRISE_ASSIGN_OR_RETURN(runner_->memory_, RunnerMemory::Create(memory, std::move(driver)));
  // Runs on the stream of the steps, so that the steps read the initialised memory.
  return CatchTorch([&] {
    return runner_->driver().OnStream([&]() -> absl::Status {
      REPRISE_RETURN_IF_ERROR(AddParts());
      return CreateGraphs();
    });
  });
}

// Adds the parts, in the order that runner/parts/runner_parts.h explains.
absl::Status RunnerSetup::AddParts() {
  ModelRunner& runner = *runner_;
  RunnerMemory* const memory = runner.memory_.get();
  RunnerParts& parts = runner.parts_;
  const RunnerShape& shape = runner.shape_;
  const int num_outputs = shape.max_steps_in_flight + 1;
  REPRISE_ASSIGN_OR_RETURN(
      runner.outputs_,
      StepOutputs::Create({.num_outputs = num_outputs,
                           .max_rows = shape.max_num_seqs,
                           .max_drafts = shape.drafts.max_drafts,
                           .keeps_logits = options_.logits.step_logits == StepLogits::kOfEvery,
                           .max_earlier_logits = shape.max_earlier_logits},
                          memory->steps(), memory->driver()));
  StepOutputs* const outputs = &*runner.outputs_;
  REPRISE_ASSIGN_OR_RETURN(runner.tracer_,
                           StepTracer::Create(options_.debug.trace, memory->driver(), num_outputs));

  auto mover = std::make_unique<BlockMover>(memory);
  mover_ = mover.get();
  parts.Add(std::move(mover));

  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<TokenChoice> choice,
                           TokenChoice::Create(shape, options_.logits, memory, outputs));
  runner.choice_ = choice.get();
  parts.Add(std::move(choice));

  const auto fill_parts = [parts = &parts](const StepPlan& plan, RefillArgs& args) {
    parts->FillRefill(plan, args);
  };
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StepPart> refill,
                           SlotRefill::Create(shape, memory, outputs, fill_parts));
  parts.Add(std::move(refill));

  parts.Add(
      std::make_unique<ScalePart>(memory, options_.cache.calibration == KvCalibration::kFirstStep));
  parts.Add(std::make_unique<WatchPart>());
  if (shape.drafts.max_drafts > 0) {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StepPart> speculation,
                             SpeculationPart::Create({.drafts = options_.speculation,
                                                      .model = &model_,
                                                      .collectives = options_.ranks.collectives,
                                                      .attention_in_graphs = attention_in_graphs()},
                                                     shape, memory, outputs));
    parts.Add(std::move(speculation));
  }
  if (options_.ranks.shards_context()) {
    parts.Add(std::make_unique<ContextPart>(
        ContextOptions(memory->classes(), memory->driver().device()), memory));
  }
  REPRISE_RETURN_IF_ERROR(AddEncoder());
  REPRISE_RETURN_IF_ERROR(AddEmbeddings());
  REPRISE_RETURN_IF_ERROR(AddShards());

  for (TokenChooser* const chooser : parts.choosers()) runner.choice_->AddChooser(chooser);
  AddCascade();
  return absl::OkStatus();
}

absl::Status RunnerSetup::AddEncoder() {
  ModelRunner& runner = *runner_;
  const RunnerShape& shape = runner.shape_;
  if (shape.max_encoder_tokens == 0) return absl::OkStatus();
  const RunnerMemory& memory = *runner.memory_;
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<EncoderPass> pass,
                           EncoderPass::Create({.metadata = memory.metadata_options(),
                                                .max_step_tokens = shape.max_encoder_step_tokens,
                                                .max_blocks = shape.max_blocks(),
                                                .block_size = shape.block_size,
                                                .num_passes_in_flight = shape.max_steps_in_flight},
                                               &memory.driver()));
  auto part = std::make_unique<EncoderPart>(std::move(pass), &model_, &memory, &*runner.tracer_);
  encoder_ = part.get();
  runner.parts_.Add(std::move(part));
  return absl::OkStatus();
}

absl::Status RunnerSetup::AddEmbeddings() {
  const RunnerShape& shape = runner_->shape_;
  if (shape.embeddings.dim == 0) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(
      std::unique_ptr<StepEmbeddings> embeddings,
      StepEmbeddings::Allocate(shape.max_num_tokens, shape.embeddings, runner_->driver().device()));
  runner_->parts_.Add(std::make_unique<EmbeddingPart>(std::move(embeddings)));
  return absl::OkStatus();
}

absl::Status RunnerSetup::AddShards() {
  ModelRunner& runner = *runner_;
  const RunnerMemory& memory = *runner.memory_;
  ShardedLogits* const sharded = ShardSampler::LogitsOf(model_.spec());
  // ReplayCheck compares the logits, so they must be gathered.
  const bool checks_replays = options_.debug.replay_check == ReplayCheck::kEveryReplay;
  if (!*options_.debug.sample_shards || sharded == nullptr || checks_replays) {
    return absl::OkStatus();
  }
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<ShardSampler> sampler,
                           ShardSampler::Create({.logits = sharded,
                                                 .max_rows = runner.shape_.max_num_seqs,
                                                 .max_logits = runner.shape_.max_num_seqs +
                                                               runner.shape_.max_earlier_logits,
                                                 .logits_dtype = memory.logits_dtype(),
                                                 .device = memory.driver().device()}));
  auto part =
      std::make_unique<ShardPart>(std::move(sampler), &memory, runner.choice_->plain_chooser());
  shards_ = part.get();
  runner.samples_shards_ = true;
  runner.parts_.Add(std::move(part));
  return absl::OkStatus();
}

void RunnerSetup::AddCascade() {
  const RunnerMemory& memory = *runner_->memory_;
  const RunnerShape& shape = runner_->shape_;
  const LayerClasses& classes = memory.classes();
  StepCascadeOptions options = {.costs = options_.device.profile->cascade_costs,
                                .num_slots = shape.max_num_seqs,
                                .max_blocks = shape.max_blocks(),
                                .block_size = shape.block_size,
                                .max_seq_len = shape.max_seq_len};
  for (int i = 0; i < classes.num_classes(); ++i) {
    if (!memory.metadata().TakesPrefix(i)) continue;
    const LayerClass& layer_class = classes.classes[i];
    const LayerSpec& layer = memory.spec().layers[layer_class.first_layer];
    options.classes.push_back(
        {.layer = {.num_q_heads = layer.params.num_q_heads,
                   .num_kv_heads = layer.params.num_kv_heads,
                   .head_dim_qk = layer.params.head_dim_qk,
                   .head_dim_v = layer.params.head_dim_v,
                   .v_in_k = layer.v_in_k,
                   .bytes_per_element = static_cast<int>(SizeOf(*options_.cache.dtype)),
                   .tile_queries = memory.metadata().cascade_schedule(i).main.tile_queries},
         .num_layers = static_cast<int>(absl::c_count(classes.class_of_layer, i))});
    if (!absl::c_linear_search(options.groups, *layer_class.kv_group)) {
      options.groups.push_back(*layer_class.kv_group);
    }
  }
  if (options.classes.empty()) return;
  StepCascade cascade(options);
  if (cascade.min_rows().has_value()) runner_->cascade_.emplace(std::move(cascade));
}

absl::Status RunnerSetup::CreateGraphs() {
  ModelRunner& runner = *runner_;
  const RunnerShape& shape = runner.shape_;
  std::vector<StepInput> inputs = {StepInput::kTokens};
  if (shape.embeddings.dim > 0) inputs.push_back(StepInput::kEmbeddings);
  const std::optional<StepCascade>& cascade = runner.cascade_;
  const GraphSetOptions graphs = {.mode = *options_.graphs.mode,
                                  .max_num_seqs = shape.max_num_seqs,
                                  .sizes = options_.graphs.sizes,
                                  .num_drafts = options_.speculation.graph_num_drafts,
                                  .mixed_tokens = options_.graphs.mixed_tokens,
                                  .mixed_sizes = options_.debug.mixed_graph_sizes,
                                  .max_seq_len = shape.max_seq_len,
                                  .inputs = inputs,
                                  // Callers do not pass embeddings for sampled tokens.
                                  .min_embedding_query_len = 2,
                                  .mixed_inputs = GraphSetOptions::MixedInputs::kShared,
                                  .cascade = cascade ? GraphSetOptions::Cascade::kCaptured
                                                     : GraphSetOptions::Cascade::kNotCaptured,
                                  .min_cascade_seqs = cascade ? *cascade->min_rows() : 1,
                                  .memory_budget_bytes = options_.graphs.memory_budget_bytes,
                                  .agree_over_budget = runner.ranks_.agree_over_budget()};
  REPRISE_ASSIGN_OR_RETURN(
      runner.graphs_,
      StepGraphs::Create(
          {.graphs = graphs,
           .attention_in_graphs = attention_in_graphs(),
           .checks_replays = options_.debug.replay_check == ReplayCheck::kEveryReplay},
          &model_, runner.memory_.get(), &runner.parts_, &runner.ranks_));
  return absl::OkStatus();
}

absl::Status RunnerSetup::SetUp() {
  ModelRunner& runner = *runner_;
  if (shards_ != nullptr && runner.driver().device().is_cuda()) {
    REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling(
        [&] { return runner.driver().OnStream([&] { return shards_->WarmUp(); }); }));
  }
  REPRISE_RETURN_IF_ERROR(SizeCache());
  runner.mirror_.emplace(runner.shape_);
  return CaptureGraphs();
}

absl::Status RunnerSetup::AllocateCache(const CachePlan& plan, int num_blocks) {
  REPRISE_RETURN_IF_ERROR(runner_->memory_->AllocateCache(plan, num_blocks));
  return runner_->parts_.SetCache();
}

// If the free memory of the device is known: measures it, and the memory of graphs and eager steps
// with a cache of minimum size. Times steps if sequences can be swapped.
absl::Status RunnerSetup::MeasureSteps(const CachePlan& plan) {
  ModelRunner& runner = *runner_;
  MemoryUse& use = runner.memory_use_;
  DeviceDriver& driver = runner.driver();
  if (!driver.free_bytes().has_value()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(AllocateCache(plan, /*num_blocks=*/2));
    REPRISE_ASSIGN_OR_RETURN(use.eager_bytes,
                             driver.MeasurePeakBytes([&] { return RunLargestStep(); }));
    return options_.cache.swaps() ? TimeSteps() : absl::OkStatus();
  }));
  if (*options_.graphs.mode != GraphSetOptions::Mode::kOff) {
    REPRISE_RETURN_IF_ERROR(runner.ranks_.MeetBeforeCapture(driver));
    REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling([&]() -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(use.graph_bytes, runner.graphs_->EstimateBytes());
      return absl::OkStatus();
    }));
  }
  runner.memory_->FreeCache();
  use.free_bytes = driver.free_bytes();
  return absl::OkStatus();
}

absl::Status RunnerSetup::SizeCache() {
  ModelRunner& runner = *runner_;
  MemoryUse& use = runner.memory_use_;
  RunnerMemory& memory = *runner.memory_;
  Collectives* const collectives = options_.ranks.collectives;
  const absl::StatusOr<CachePlan> made =
      CachePlan::Create(options_, memory.spec(), memory.classes());
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, made.status()));
  const CachePlan& plan = *made;
  REPRISE_RETURN_IF_ERROR(MeasureSteps(plan));
  REPRISE_ASSIGN_OR_RETURN(
      const int64_t num_blocks,
      MinOverRanks(collectives,
                   plan.ChooseNumBlocks(use.free_bytes, use.eager_bytes + use.graph_bytes)));
  runner.shape_.num_blocks = static_cast<int>(num_blocks);
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(
      collectives, CatchTorch([&] { return AllocateCache(plan, runner.shape_.num_blocks); })));
  if (options_.cache.swaps() && !runner.step_times_.has_value()) {
    REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling([&] { return TimeSteps(); }));
  }
  runner.shape_.bytes_per_block = memory.block_store().bytes_per_block();
  use.step_bytes = memory.step_bytes() + runner.parts_.bytes();
  use.cache_bytes = num_blocks * plan.bytes_per_block();
  return AllocateSwapBlocks();
}

absl::Status RunnerSetup::AllocateSwapBlocks() {
  if (!options_.cache.swaps()) return absl::OkStatus();
  const int64_t bytes_per_block = runner_->shape_.bytes_per_block;
  absl::StatusOr<int64_t> own_blocks;
  if (const auto* const blocks = std::get_if<NumBlocks>(&options_.cache.swap)) {
    own_blocks = blocks->value;
  } else {
    const int64_t num_bytes = std::get<NumBytes>(options_.cache.swap).value;
    own_blocks =
        std::min<int64_t>(num_bytes / bytes_per_block, std::numeric_limits<int32_t>::max());
    if (*own_blocks < 2) {
      own_blocks =
          absl::InvalidArgumentError(absl::StrCat("cache.swap must hold host block 0, which is "
                                                  "never used, and one more: expected at least ",
                                                  2 * bytes_per_block, " bytes, got ", num_bytes));
    }
  }
  // Ranks with more heads have larger blocks.
  REPRISE_ASSIGN_OR_RETURN(const int64_t num_swap_blocks,
                           MinOverRanks(options_.ranks.collectives, own_blocks));
  const absl::Status allocated = mover_->AllocateHostBlocks(static_cast<int>(num_swap_blocks));
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(options_.ranks.collectives, allocated));
  runner_->shape_.num_swap_blocks = static_cast<int>(num_swap_blocks);
  runner_->memory_use_.swap_bytes = num_swap_blocks * bytes_per_block;
  return absl::OkStatus();
}

absl::Status RunnerSetup::RunLargestStep() {
  const RunnerShape& shape = runner_->shape_;
  if (encoder_ != nullptr) {
    const int max_tokens = shape.max_encoder_tokens;
    const std::vector<int32_t> input(max_tokens, 0);
    std::vector<ScheduledEncode> encodes;
    const int num_inputs = std::min(shape.max_encoder_step_tokens / max_tokens, shape.max_num_seqs);
    for (int i = 0; i < num_inputs; ++i) encodes.push_back({.slot = SlotId(i), .tokens = input});
    REPRISE_RETURN_IF_ERROR(encoder_->Run(encodes));
  }
  return RunStepOf(shape.max_num_seqs, shape.max_num_tokens, /*timer=*/nullptr);
}

absl::Status RunnerSetup::RunStepOf(int num_rows, int num_tokens, DeviceTimer* timer) {
  const RunnerShape& shape = runner_->shape_;
  StepMemory& steps = runner_->memory_->steps();
  std::vector<int32_t> query_start_loc = {0};
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> positions;
  for (int row = 0; row < num_rows; ++row) {
    const int num_left = num_tokens - query_start_loc.back() - (num_rows - 1 - row);
    seq_lens.push_back(std::min(num_left, shape.max_seq_len));
    query_start_loc.push_back(query_start_loc.back() + seq_lens.back());
    for (int i = 0; i < seq_lens.back(); ++i) positions.push_back(i);
  }
  steps.FillLiveRows(query_start_loc, seq_lens, positions, shape.max_encoder_tokens);
  const StepStage::Work step = runner_->graphs_->MakeStep(
      {.padded_num_seqs = num_rows,
       .padded_num_tokens = query_start_loc.back(),
       .max_query_len = seq_lens.front(),
       .input = shape.embeddings.dim == 0 ? StepInput::kTokens : StepInput::kEmbeddings,
       .num_earlier_logits = timer == nullptr ? shape.max_earlier_logits : 0},
      {});
  if (timer != nullptr) timer->Mark(0);
  const absl::Status status = step();
  if (timer != nullptr) timer->Mark(1);
  steps.Zero();
  return status;
}

absl::StatusOr<double> RunnerSetup::TimeStepOf(int num_rows, int num_tokens, DeviceTimer* timer) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Fence> fence, runner_->driver().MakeFence());
  REPRISE_RETURN_IF_ERROR(RunStepOf(num_rows, num_tokens, timer));
  fence->Arm();
  REPRISE_RETURN_IF_ERROR(fence->Wait());
  REPRISE_ASSIGN_OR_RETURN(const double ns, timer->NsBetween(0, 1));
  return ns / 1e3;
}

// The time of the first step with one token is not used: it may include the selection of GEMM
// kernels on the host.
absl::Status RunnerSetup::TimeSteps() {
  const RunnerShape& shape = runner_->shape_;
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceTimer> timer,
                           runner_->driver().MakeTimer(/*num_marks=*/2));
  // The maximum number of tokens per step, or fewer if all sequences together are shorter.
  const int num_tokens = static_cast<int>(
      std::min(int64_t{shape.max_num_tokens}, int64_t{shape.max_num_seqs} * shape.max_seq_len));
  StepTimes times = {.num_tokens = num_tokens};
  REPRISE_ASSIGN_OR_RETURN(times.largest_us,
                           TimeStepOf(shape.max_num_seqs, num_tokens, timer.get()));
  REPRISE_RETURN_IF_ERROR(TimeStepOf(1, 1, timer.get()).status());
  REPRISE_ASSIGN_OR_RETURN(times.min_us, TimeStepOf(1, 1, timer.get()));
  runner_->step_times_ = times;
  return absl::OkStatus();
}

// Times GEMMs only until the end of this call, because the first prompt of a shape must not wait
// for a search. Times the GEMMs of all graph keys in every mode, even without graphs or with lazy
// capture, so that the choice of algorithms does not depend on the mode.
absl::Status RunnerSetup::CaptureGraphs() {
  ModelRunner& runner = *runner_;
  DeviceDriver& driver = runner.driver();
  driver.linears().SetTiming(LinearTiming::kOn);
  if (*options_.graphs.mode != GraphSetOptions::Mode::kEager && driver.device().is_cuda()) {
    REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling([&] { return runner.graphs_->TimeProducts(); }));
  }
  REPRISE_RETURN_IF_ERROR(runner.ranks_.MeetBeforeCapture(driver));
  REPRISE_RETURN_IF_ERROR(runner.ranks_.Telling([&] { return runner.graphs_->Capture(); }));
  driver.linears().SetTiming(LinearTiming::kOff);
  return absl::OkStatus();
}

}  // namespace reprise
