#include "runner/model_runner.h"

#include <ATen/ops/empty.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "attention/layer_classes.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
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

// Constant from the end of Create(), shared with captured steps, which hold it by value.
struct ModelRunner::Constants {
  Model* model = nullptr;
  DeviceDriver* driver = nullptr;
  StepMemory* memory = nullptr;
  std::vector<LayerSpec> layers;
  std::vector<KvLayer> kv;  // one a layer
  LayerClasses classes;
  std::vector<WorkMap> work_maps;  // one a class
  int max_seq_len = 0;
};

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    Model* model, const ModelRunnerOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const ModelRunnerOptions resolved,
                           ResolveRunnerOptions(options, model->spec()));
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(model, resolved));
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return runner->Allocate(); }));
  return runner;
}

ModelRunner::ModelRunner(Model* model, const ModelRunnerOptions& options)
    : model_(model),
      options_(options),
      max_blocks_((*options.max_seq_len - 1) / options.block_size + 1) {}

ModelRunner::~ModelRunner() {
  // Nothing may be freed that a step in flight still reads.
  while (num_awaited_ < num_launched_) outputs_[num_awaited_++ % outputs_.size()].written->Wait();
}

absl::Status ModelRunner::Allocate() {
  const ModelSpec& spec = model_->spec();
  REPRISE_ASSIGN_OR_RETURN(driver_, MakeDeviceDriver(spec.device));
  REPRISE_ASSIGN_OR_RETURN(memory_, StepMemory::Allocate({.max_rows = options_.max_num_seqs,
                                                          .max_tokens = options_.max_num_tokens,
                                                          .max_blocks = max_blocks_,
                                                          .vocab_size = spec.vocab_size,
                                                          .logits_dtype = spec.dtype},
                                                         spec.device));
  REPRISE_RETURN_IF_ERROR(AllocateRings());
  REPRISE_ASSIGN_OR_RETURN(
      graphs_, GraphSet::Create({.mode = *options_.graphs,
                                 .max_num_seqs = options_.max_num_seqs,
                                 .sizes = options_.graph_sizes,
                                 .max_seq_len = max_seq_len(),
                                 .memory_budget_bytes = options_.graph_memory_budget_bytes},
                                &driver_->graphs()));

  // What graphs take is measured against a cache of the least size; the rest is the cache's.
  int64_t graph_bytes = 0;
  if (driver_->free_bytes().has_value() && *options_.graphs != GraphSetOptions::Mode::kOff) {
    REPRISE_RETURN_IF_ERROR(AllocateCache(/*num_blocks=*/2));
    REPRISE_ASSIGN_OR_RETURN(
        graph_bytes, graphs_->EstimateBytes([this](const GraphKey& key) { return MakeStep(key); }));
  }
  REPRISE_ASSIGN_OR_RETURN(num_blocks_,
                           ChooseNumBlocks(options_, spec, driver_->free_bytes(), graph_bytes));
  REPRISE_RETURN_IF_ERROR(AllocateCache(num_blocks_));
  mirror_.emplace(SlotLimits{.num_slots = options_.max_num_seqs,
                             .max_num_tokens = options_.max_num_tokens,
                             .max_seq_len = max_seq_len(),
                             .max_blocks = max_blocks_,
                             .block_size = options_.block_size,
                             .num_blocks = num_blocks_,
                             .vocab_size = spec.vocab_size});
  return CaptureGraphs();
}

// Products of the captured shapes, and of no others, are timed: a prompt's shape must not cost its
// first user a search. Without graphs the same shapes are, so that both compute the same bits.
absl::Status ModelRunner::CaptureGraphs() {
  const auto make_step = [this](const GraphKey& key) { return MakeStep(key); };
  driver_->linears().SetTiming(LinearTiming::kOn);
  if (*options_.graphs == GraphSetOptions::Mode::kOff && model_->spec().device.is_cuda()) {
    for (const GraphKey& key : graphs_->keys()) {
      REPRISE_RETURN_IF_ERROR(driver_->OnStream(make_step(key)));
    }
  }
  REPRISE_RETURN_IF_ERROR(graphs_->CaptureAll(make_step, CurrentFingerprint()));
  driver_->linears().SetTiming(LinearTiming::kOff);
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateRings() {
  const int num_slots = max_steps_in_flight() + 1;
  delta_capacity_ = {.num_slots = options_.max_num_seqs,
                     .max_updates = int64_t{options_.max_num_seqs} * max_blocks_,
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

  // A token a row, and the number of bad rows.
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

absl::Status ModelRunner::AllocateCache(int num_blocks) {
  const ModelSpec& spec = model_->spec();
  kv_cache_.reset();  // before the new one: both might not fit
  REPRISE_ASSIGN_OR_RETURN(const KvLayoutOptions layout_options,
                           CacheLayoutFor(options_, spec, num_blocks));
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create(layout_options));
  REPRISE_ASSIGN_OR_RETURN(kv_cache_, KvCache::Create(layout, spec.device));
  auto constants = std::make_shared<Constants>();
  constants->model = model_;
  constants->driver = driver_.get();
  constants->memory = memory_.get();
  constants->layers = spec.layers;
  constants->kv.assign(kv_cache_->layers().begin(), kv_cache_->layers().end());
  REPRISE_ASSIGN_OR_RETURN(constants->classes, CollectLayerClasses(spec.layers));
  constants->max_seq_len = max_seq_len();
  REPRISE_RETURN_IF_ERROR(AllocateWorkMaps(*constants));
  constants_ = std::move(constants);
  return absl::OkStatus();
}

absl::Status ModelRunner::AllocateWorkMaps(Constants& constants) {
  work_map_memory_.clear();
  for (const LayerClass& layers : constants.classes.classes) {
    const AttentionParams& params = constants.layers[layers.first_layer].params;
    REPRISE_ASSIGN_OR_RETURN(const WorkMapPlan plan,
                             driver_->PlanWork({.dtype = model_->spec().dtype,
                                                .num_q_heads = params.num_q_heads,
                                                .num_kv_heads = params.num_kv_heads,
                                                .head_dim_qk = params.head_dim_qk,
                                                .head_dim_v = params.head_dim_v,
                                                .max_rows = options_.max_num_seqs,
                                                .max_tokens = options_.max_num_tokens,
                                                .max_query_len = options_.max_num_tokens,
                                                .max_seq_len = max_seq_len()}));
    work_map_memory_.push_back(at::empty(
        {plan.workspace_bytes}, at::TensorOptions(model_->spec().device).dtype(at::kByte)));
    constants.work_maps.push_back(MakeWorkMap(plan, work_map_memory_.back().data_ptr()));
  }
  return absl::OkStatus();
}

std::function<absl::Status()> ModelRunner::MakeStep(const GraphKey& key) const {
  const StepArrays& arrays = memory_->arrays();
  const SlotState& slots = memory_->slots();
  const PagedBatch batch = {.query_start_loc = arrays.query_start_loc,
                            .seq_lens = arrays.seq_lens,
                            .table_row = arrays.table_row,
                            .block_table = slots.block_table,
                            .block_table_stride = slots.block_table_stride,
                            .query_positions = arrays.positions,
                            .num_rows = key.padded_num_seqs,
                            .num_tokens = key.padded_num_tokens,
                            .max_query_len = key.max_query_len,
                            .max_seq_len = constants_->max_seq_len,
                            .num_tables = slots.num_slots,
                            .max_blocks = slots.max_blocks};
  const int64_t num_tokens = key.padded_num_tokens;
  auto step = std::make_shared<const reprise::Step>(reprise::Step::Parts{
      .token_ids = memory_->View(arrays.token_ids, num_tokens),
      .positions = memory_->View(arrays.positions, num_tokens),
      .slot_mapping = memory_->View(arrays.slot_mapping, num_tokens),
      .logits_indices = memory_->View(arrays.logits_indices, key.padded_num_seqs),
      .logits = memory_->logits(key.padded_num_seqs),
      .layers = constants_->layers,
      .kv = constants_->kv,
      .layer_class = constants_->classes.class_of_layer,
      .work_maps = constants_->work_maps,
      .batch = batch,
      .linears = &driver_->linears()});
  return [step, batch, constants = constants_]() -> absl::Status {
    return CatchTorch([&]() -> absl::Status {
      for (int i = 0; i < constants->classes.num_classes(); ++i) {
        REPRISE_RETURN_IF_ERROR(constants->driver->BuildWork(
            constants->layers[constants->classes.classes[i].first_layer].params, batch,
            constants->work_maps[i]));
      }
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, constants->model->Forward(*step));
      return KeepLogits(logits, step->logits());
    });
  };
}

absl::StatusOr<StepTicket> ModelRunner::Launch(const ScheduledBatch& batch) {
  CHECK_LT(num_launched_ - num_awaited_, max_steps_in_flight());
  REPRISE_ASSIGN_OR_RETURN(const StepDemand demand, mirror_->Advance(batch));
  GraphDecision decision = graphs_->Decide(demand.shape);
  Output& output = outputs_[num_launched_ % outputs_.size()];
  REPRISE_RETURN_IF_ERROR(Refill(batch, decision.key, output));
  if (demand.shape.num_seqs > 0) {
    REPRISE_ASSIGN_OR_RETURN(decision, RunStep(decision));
    REPRISE_RETURN_IF_ERROR(
        driver_->Sample({.logits = memory_->logits(decision.key.padded_num_seqs),
                         .slots = memory_->slots(),
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

absl::Status ModelRunner::Refill(const ScheduledBatch& batch, const GraphKey& key,
                                 const Output& output) {
  StagingSlot slot = delta_ring_->Acquire();
  WriteStepDelta(batch, StepDeltaAt(delta_capacity_, slot.bytes().data()));
  RefillArgs args{.delta = StepDeltaAt(delta_capacity_,
                                       delta_memory_->device<std::byte>() + slot.offset_bytes()),
                  .slots = memory_->slots(),
                  .arrays = memory_->arrays(),
                  .padded_num_rows = key.padded_num_seqs,
                  .padded_num_tokens = key.padded_num_tokens,
                  .block_size = options_.block_size,
                  .num_blocks = num_blocks_};
  args.arrays.num_bad_rows = output.device_tokens + options_.max_num_seqs;
  return driver_->Refill(args);
}

absl::StatusOr<GraphDecision> ModelRunner::RunStep(const GraphDecision& decision) {
  const auto make_step = [this](const GraphKey& key) { return MakeStep(key); };
  if (decision.kind == GraphDecision::Kind::kReplay) {
    return graphs_->Replay(decision.key, make_step, CurrentFingerprint());
  }
  REPRISE_RETURN_IF_ERROR(driver_->OnStream(make_step(decision.key)));
  return decision;
}

absl::StatusOr<StepResult> ModelRunner::Await(StepTicket ticket) {
  CHECK_EQ(ticket.step, num_awaited_) << "steps are awaited in the order of their launch";
  CHECK_LT(num_awaited_, num_launched_);
  const Output& output = outputs_[num_awaited_++ % outputs_.size()];
  output.written->Wait();
  const int32_t num_bad_rows = output.tokens[options_.max_num_seqs];
  if (num_bad_rows != 0) {
    return absl::InternalError(absl::StrCat("step ", ticket.step, ": the device refused ",
                                            num_bad_rows, " parts of the batch"));
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

const Fingerprint& ModelRunner::CurrentFingerprint() {
  fingerprint_.Clear();
  fingerprint_.AddValue("max_seq_len", max_seq_len());
  fingerprint_.AddValue("block_size", options_.block_size);
  fingerprint_.AddValue("num_blocks", num_blocks_);
  memory_->AddTo(fingerprint_);
  for (const KvLayer& layer : constants_->kv) {
    fingerprint_.AddAddress("k", layer.k.data);
    fingerprint_.AddAddress("v", layer.v.data);
  }
  for (const WorkMap& map : constants_->work_maps) fingerprint_.AddAddress("work_map", map.items);
  return fingerprint_;
}

}  // namespace reprise
