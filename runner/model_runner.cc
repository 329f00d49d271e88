#include "runner/model_runner.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "cache/ops/copy_blocks.h"
#include "glog/logging.h"
#include "runner/model_runner_options.h"

namespace reprise {
namespace {

// Logits are read after the graph: they must be in the runner's memory, not in the graph's.
absl::Status KeepLogits(const at::Tensor& logits, const at::Tensor& kept) {
  ShapeChecker dims;
  dims.Bind("num_logits", kept.size(0));
  dims.Bind("vocab_size", kept.size(1));
  REPRISE_RETURN_IF_ERROR(dims.Check("logits of the model", logits, {"num_logits", "vocab_size"}));
  if (logits.data_ptr() != kept.data_ptr()) kept.copy_(logits);
  return absl::OkStatus();
}

}  // namespace

// Values that captured steps hold: constant during the life of the graphs.
struct ModelRunner::Constants {
  Model* model = nullptr;
  const StepMetadata* metadata = nullptr;
  std::vector<KvLayer> kv;  // one per layer
};

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    Model* model, const ModelRunnerOptions& options) {
  const ModelSpec& spec = model->spec();
  REPRISE_ASSIGN_OR_RETURN(const ModelRunnerOptions resolved, ResolveRunnerOptions(options, spec));
  REPRISE_ASSIGN_OR_RETURN(LayerClasses classes, CollectLayerClasses(spec.layers));
  if (classes.num_groups() < 1 || classes.num_groups() > kMaxKvGroups) {
    return absl::UnimplementedError(
        absl::StrCat("the layers of the model's spec must make 1 to ", kMaxKvGroups,
                     " KV groups (attention/layer_classes.h): got ", classes.num_groups()));
  }
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(model, resolved, std::move(classes)));
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return runner->Allocate(); }));
  return runner;
}

ModelRunner::ModelRunner(Model* model, const ModelRunnerOptions& options, LayerClasses classes)
    : model_(model),
      options_(options),
      classes_(std::move(classes)),
      max_blocks_((std::max(*options.max_seq_len, *options.max_encoder_tokens) - 1) /
                      options.block_size +
                  1) {}

ModelRunner::~ModelRunner() {
  // Steps in flight may still read the memory that is freed: waits for them.
  while (num_awaited_ < num_launched_) outputs_[num_awaited_++ % outputs_.size()].written->Wait();
}

absl::Status ModelRunner::Allocate() {
  const ModelSpec& spec = model_->spec();
  const bool invariant = options_.batch_invariance == BatchInvariance::kOn;
  REPRISE_ASSIGN_OR_RETURN(driver_, MakeDeviceDriver(spec.device, {.deterministic = invariant}));
  const StepMetadataOptions metadata = {
      .layers = spec.layers,
      .classes = classes_,
      .within = spec.within,
      .dtype = spec.dtype,
      .device = spec.device,
      .max_rows = options_.max_num_seqs,
      .max_tokens = options_.max_num_tokens,
      .max_seq_len = max_seq_len(),
      .max_encoder_tokens = *options_.max_encoder_tokens,
      .mode = invariant ? WorkMapMode::kDeterministic : WorkMapMode::kBalanced,
      .shared_prefix =
          options_.cascade == CascadeMode::kAuto ? SharedPrefix::kTaken : SharedPrefix::kIgnored};
  REPRISE_ASSIGN_OR_RETURN(metadata_, StepMetadata::Create(metadata, driver_.get()));
  REPRISE_ASSIGN_OR_RETURN(memory_, StepMemory::Allocate({.max_rows = options_.max_num_seqs,
                                                          .max_tokens = options_.max_num_tokens,
                                                          .max_blocks = max_blocks_,
                                                          .num_groups = classes_.num_groups(),
                                                          .vocab_size = spec.vocab_size,
                                                          .logits_dtype = spec.dtype},
                                                         spec.device));
  if (*options_.max_encoder_tokens > 0) {
    REPRISE_ASSIGN_OR_RETURN(encoder_,
                             EncoderPass::Create({.metadata = metadata,
                                                  .max_step_tokens = max_encoder_step_tokens(),
                                                  .max_blocks = max_blocks_,
                                                  .block_size = options_.block_size,
                                                  .num_passes_in_flight = max_steps_in_flight()},
                                                 driver_.get()));
  }
  REPRISE_RETURN_IF_ERROR(AllocateRings());
  MakeCascade();
  REPRISE_ASSIGN_OR_RETURN(
      graphs_, GraphSet::Create({.mode = *options_.graphs,
                                 .max_num_seqs = options_.max_num_seqs,
                                 .sizes = options_.graph_sizes,
                                 .max_seq_len = max_seq_len(),
                                 .cascade = cascade_ ? GraphSetOptions::Cascade::kCaptured
                                                     : GraphSetOptions::Cascade::kNotCaptured,
                                 .least_cascade_seqs = cascade_ ? *cascade_->least_rows() : 1,
                                 .memory_budget_bytes = options_.graph_memory_budget_bytes},
                                &driver_->graphs()));

  // The memory of graphs is measured with a cache of the smallest size; the cache gets the rest.
  REPRISE_ASSIGN_OR_RETURN(const CachePlan plan, CachePlan::Create(options_, spec, classes_));
  int64_t graph_bytes = 0;
  if (driver_->free_bytes().has_value() && *options_.graphs != GraphSetOptions::Mode::kOff) {
    REPRISE_RETURN_IF_ERROR(AllocateCache(plan, /*num_blocks=*/2));
    REPRISE_ASSIGN_OR_RETURN(
        graph_bytes, graphs_->EstimateBytes([this](const GraphKey& key) { return MakeStep(key); }));
  }
  REPRISE_ASSIGN_OR_RETURN(num_blocks_, plan.ChooseNumBlocks(driver_->free_bytes(), graph_bytes));
  REPRISE_RETURN_IF_ERROR(AllocateCache(plan, num_blocks_));
  REPRISE_ASSIGN_OR_RETURN(block_store_, BlockStore::Over(*kv_cache_, {}));
  mirror_.emplace(SlotLimits{.num_slots = options_.max_num_seqs,
                             .max_num_tokens = options_.max_num_tokens,
                             .max_seq_len = max_seq_len(),
                             .max_blocks = max_blocks_,
                             .block_size = options_.block_size,
                             .num_blocks = num_blocks_,
                             .vocab_size = spec.vocab_size,
                             .groups = classes_.groups,
                             .max_encoder_tokens = *options_.max_encoder_tokens,
                             .max_encoder_step_tokens = max_encoder_step_tokens()});
  return CaptureGraphs();
}

// Only products of the captured shapes are timed: the first prompt of a shape must not wait for a
// search. Without graphs the same shapes are timed, so that both compute the same bits.
absl::Status ModelRunner::CaptureGraphs() {
  const auto make_step = [this](const GraphKey& key) { return MakeStep(key); };
  driver_->linears().SetTiming(LinearTiming::kOn);
  if (*options_.graphs == GraphSetOptions::Mode::kOff && model_->spec().device.is_cuda()) {
    for (const GraphKey& key : graphs_->keys()) {
      REPRISE_RETURN_IF_ERROR(driver_->OnStream(make_step(key)));
    }
  }
  REPRISE_RETURN_IF_ERROR(graphs_->CaptureAll(make_step, fingerprint_));
  driver_->linears().SetTiming(LinearTiming::kOff);
  return absl::OkStatus();
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
    const LayerSpec& layer = model_->spec().layers[layer_class.first_layer];
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
  delta_capacity_ = {
      .num_slots = options_.max_num_seqs,
      .max_updates = int64_t{classes_.num_groups()} * options_.max_num_seqs * max_blocks_,
      .max_rows = options_.max_num_seqs,
      .max_tokens = options_.max_num_tokens};
  REPRISE_ASSIGN_OR_RETURN(delta_memory_,
                           driver_->AllocateMapped(num_slots * StepDeltaBytes(delta_capacity_)));
  std::vector<std::unique_ptr<Fence>> read;
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(read.emplace_back(), driver_->MakeFence());
  }
  REPRISE_ASSIGN_OR_RETURN(delta_ring_,
                           StagingRing::Create(delta_memory_->host_bytes(), std::move(read)));

  // One token per row, and the number of bad rows.
  const int64_t output_size = options_.max_num_seqs + 1;
  REPRISE_ASSIGN_OR_RETURN(
      output_memory_, driver_->AllocateMapped(num_slots * output_size * int64_t{sizeof(int32_t)}));
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Fence> written, driver_->MakeFence());
    outputs_.push_back({.tokens = output_memory_->host<int32_t>() + i * output_size,
                        .device_tokens = output_memory_->device<int32_t>() + i * output_size,
                        .written = std::move(written),
                        .decision = {}});
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateCache(const CachePlan& plan, int num_blocks) {
  kv_cache_.reset();  // before the new one: both might not fit
  REPRISE_ASSIGN_OR_RETURN(kv_cache_, plan.Allocate(num_blocks));
  constants_ = std::make_shared<const Constants>(
      Constants{.model = model_, .metadata = metadata_.get(), .kv = plan.LayersOf(*kv_cache_)});
  fingerprint_ = MakeFingerprint(num_blocks);
  return absl::OkStatus();
}

std::function<absl::Status()> ModelRunner::MakeStep(const GraphKey& key) const {
  const StepArrays& arrays = memory_->arrays();
  StepBatches batches = metadata_->BatchesAt(key, *memory_);
  const int64_t num_tokens = key.padded_num_tokens;
  std::vector<at::Tensor> slot_mappings;
  for (int group = 0; group < classes_.num_groups(); ++group) {
    slot_mappings.push_back(memory_->View(arrays.group_slots(group), num_tokens));
  }
  auto step = std::make_shared<const reprise::Step>(reprise::Step::Parts{
      .token_ids = memory_->View(arrays.token_ids, num_tokens),
      .positions = memory_->View(arrays.positions, num_tokens),
      .slot_mappings = std::move(slot_mappings),
      .logits_indices = memory_->View(arrays.logits_indices, key.padded_num_seqs),
      .logits = memory_->logits(key.padded_num_seqs),
      .kv = constants_->kv,
      .batches = batches,
      .metadata = metadata_.get(),
      .linears = &driver_->linears()});
  return [step, batches = std::move(batches), constants = constants_]() -> absl::Status {
    return CatchTorch([&]() -> absl::Status {
      REPRISE_RETURN_IF_ERROR(constants->metadata->Build(batches));
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, constants->model->Forward(*step));
      return KeepLogits(logits, step->logits());
    });
  };
}

absl::StatusOr<StepTicket> ModelRunner::Launch(const ScheduledBatch& batch) {
  CHECK_LT(num_launched_ - num_awaited_, max_steps_in_flight());
  REPRISE_ASSIGN_OR_RETURN(StepDemand demand, mirror_->Advance(batch));
  StepCascade::Decision cascade;
  if (cascade_) cascade = cascade_->Decide(batch, *mirror_);
  demand.shape.cascade = cascade.rule.use();
  GraphDecision decision = graphs_->Decide(demand.shape);
  Output& output = outputs_[num_launched_ % outputs_.size()];
  REPRISE_RETURN_IF_ERROR(Copy(batch.copies));
  const int common_prefix_len = decision.key.cascade ? cascade.common_prefix_len : 0;
  REPRISE_RETURN_IF_ERROR(Refill(batch, decision.key, common_prefix_len, output));
  if (encoder_ != nullptr) {
    encoder_->Follow(batch.updates);
    if (!batch.encodes.empty()) {
      REPRISE_RETURN_IF_ERROR(encoder_->Run(batch.encodes, *model_, constants_->kv));
    }
  }
  if (demand.shape.num_seqs > 0) {
    REPRISE_ASSIGN_OR_RETURN(decision, RunStep(decision));
    REPRISE_RETURN_IF_ERROR(
        driver_->Sample({.logits = memory_->logits(decision.key.padded_num_seqs),
                         .slots = memory_->slots().sampling_slots(),
                         .sample_slot = memory_->arrays().sample_slot,
                         .out = output.device_tokens,
                         .features = demand.features}));
  }
  output.written->Arm();
  output.num_rows = demand.shape.num_seqs;
  output.decision = decision;
  graphs_->Count(decision, demand.shape);
  return StepTicket{num_launched_++};
}

absl::Status ModelRunner::Copy(absl::Span<const BlockCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  // On the stream of the steps: after all that were launched, before this one.
  return driver_->OnStream([&] { return CopyBlocks(*block_store_, *block_store_, copies); });
}

absl::Status ModelRunner::Refill(const ScheduledBatch& batch, const GraphKey& key,
                                 int common_prefix_len, const Output& output) {
  StagingSlot slot = delta_ring_->Acquire();
  WriteStepDelta(batch, common_prefix_len, StepDeltaAt(delta_capacity_, slot.bytes().data()));
  RefillArgs args{.delta = StepDeltaAt(delta_capacity_,
                                       delta_memory_->device<std::byte>() + slot.offset_bytes()),
                  .slots = memory_->slots(),
                  .arrays = memory_->arrays(),
                  .padded_num_rows = key.padded_num_seqs,
                  .padded_num_tokens = key.padded_num_tokens,
                  .block_size = options_.block_size,
                  .num_blocks = num_blocks_};
  absl::c_copy(classes_.groups, args.groups);
  args.arrays.num_faults = output.device_tokens + options_.max_num_seqs;
  return driver_->Refill(args);
}

absl::StatusOr<GraphDecision> ModelRunner::RunStep(const GraphDecision& decision) {
  const auto make_step = [this](const GraphKey& key) { return MakeStep(key); };
  if (decision.kind == GraphDecision::Kind::kReplay) {
    return graphs_->Replay(decision.key, make_step, fingerprint_);
  }
  REPRISE_RETURN_IF_ERROR(driver_->OnStream(make_step(decision.key)));
  return decision;
}

absl::StatusOr<StepResult> ModelRunner::Await(StepTicket ticket) {
  CHECK_EQ(ticket.step, num_awaited_) << "steps are awaited in the order of their launch";
  CHECK_LT(num_awaited_, num_launched_);
  const Output& output = outputs_[num_awaited_++ % outputs_.size()];
  output.written->Wait();
  const int32_t num_faults = output.tokens[options_.max_num_seqs];
  if (num_faults != 0) {
    return absl::InternalError(absl::StrCat("step ", ticket.step, ": the device refused ",
                                            num_faults, " parts of the batch"));
  }
  return StepResult{.tokens = absl::MakeConstSpan(output.tokens, output.num_rows),
                    .decision = output.decision};
}

absl::StatusOr<StepResult> ModelRunner::Step(const ScheduledBatch& batch) {
  REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, Launch(batch));
  return Await(ticket);
}

absl::Status ModelRunner::CheckTokens(std::string_view argument,
                                      absl::Span<const int32_t> tokens) const {
  const int vocab_size = model_->spec().vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(std::string(argument), " must hold ids in [0, ",
                                                   vocab_size, "): got ", tokens[i], " at index ",
                                                   i));
  }
  return absl::OkStatus();
}

Fingerprint ModelRunner::MakeFingerprint(int num_blocks) const {
  Fingerprint fingerprint;
  fingerprint.AddValue("max_seq_len", max_seq_len());
  fingerprint.AddValue("block_size", options_.block_size);
  fingerprint.AddValue("num_blocks", num_blocks);
  memory_->AddTo(fingerprint);
  metadata_->AddTo(fingerprint);
  for (const KvLayer& layer : constants_->kv) {
    fingerprint.AddAddress("k", layer.k.data);
    fingerprint.AddAddress("v", layer.v.data);
  }
  return fingerprint;
}

}  // namespace reprise
