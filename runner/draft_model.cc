#include "runner/draft_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "runner/sampling/sampling.h"
#include "runner/speculation/draft_rows.h"
#include "runner/step.h"

namespace reprise {

ModelSpec WithLayersOf(const ModelSpec& spec, const ModelSpec& draft) {
  ModelSpec both = spec;
  const int first = static_cast<int>(spec.layers.size());
  for (LayerSpec layer : draft.layers) {
    if (layer.shares_kv_with) *layer.shares_kv_with += first;
    both.layers.push_back(std::move(layer));
  }
  return both;
}

DraftModel::DraftModel(const DraftModelOptions& options)
    : options_(options),
      classes_(options.metadata->ClassesOf(options.first_layer,
                                           static_cast<int>(options.metadata->layers().size()))) {}

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(const DraftModelOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<DraftModel>> {
    auto draft = std::unique_ptr<DraftModel>(new DraftModel(options));
    const ModelSpec& spec = options.model->spec();
    const at::TensorOptions on_device(options.driver->device());
    draft->logits_ =
        at::zeros({options.max_num_seqs, spec.vocab_size},
                  on_device.dtype(ToScalarType(spec.logits_dtype.value_or(spec.dtype))));
    draft->chosen_ = at::zeros({options.max_num_seqs}, on_device.dtype(at::kInt));
    return draft;
  });
}

std::shared_ptr<const Step> DraftModel::StepAt(const StepArrays& arrays, const StepBatches& batches,
                                               int num_logits, absl::Span<const KvLayer> kv,
                                               const KvScales* calibrated) const {
  const StepMemory& memory = *options_.memory;
  const int64_t num_tokens = batches.rows.num_tokens;
  std::vector<at::Tensor> slot_mappings;
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    slot_mappings.push_back(memory.View(arrays.group_slots(static_cast<int>(group)), num_tokens));
  }
  return std::make_shared<const Step>(
      Step::Parts{.token_ids = memory.View(arrays.token_ids, num_tokens),
                  .positions = memory.View(arrays.positions, num_tokens),
                  .slot_mappings = std::move(slot_mappings),
                  .logits_indices = memory.View(arrays.logits_indices, num_logits),
                  .logits = logits_.narrow(0, 0, num_logits),
                  .kv = kv.subspan(options_.first_layer),
                  .first_layer = options_.first_layer,
                  .batches = batches,
                  .metadata = options_.metadata,
                  .linears = &options_.driver->linears(),
                  .dtype = options_.model->spec().dtype,
                  .calibrated = calibrated,
                  .graphs = &options_.driver->graphs(),
                  .attends_between_graphs = !options_.attention_in_graphs});
}

std::function<absl::Status()> DraftModel::Passes(const GraphKey& key, absl::Span<const KvLayer> kv,
                                                 int num_blocks) const {
  struct Pass {
    DraftRowsArgs rows;
    StepBatches batches;
    std::shared_ptr<const Step> step = {};
    SampleArgs sample = {};
  };
  const StepMemory& memory = *options_.memory;
  DraftRowsArgs rows = {.slots = memory.slots(),
                        .arrays = memory.arrays(),
                        .draft = memory.draft_arrays(),
                        .chosen = chosen_.data_ptr<int32_t>(),
                        .max_drafts = key.num_drafts,
                        .num_rows = key.padded_num_seqs,
                        .block_size = options_.block_size,
                        .num_blocks = num_blocks};
  absl::c_copy(options_.groups, rows.groups);
  const StepArrays& arrays = memory.draft_arrays();
  std::vector<Pass> passes;
  for (int i = 0; i < key.num_drafts; ++i) {
    // The first pass has the shape of the step, the others that of a decode.
    GraphKey pass_key = {.padded_num_seqs = key.padded_num_seqs,
                         .padded_num_tokens = key.padded_num_seqs};
    if (i == 0) {
      pass_key.max_query_len = 1 + key.num_drafts;
      pass_key.padded_num_tokens *= pass_key.max_query_len;
      pass_key.num_drafts = key.num_drafts;
    }
    Pass pass = {.rows = rows,
                 .batches = options_.metadata->BatchesAt(pass_key, arrays, memory.slots())};
    pass.batches.before.clear();  // of the model's attention within steps
    pass.rows.pass = i;
    pass.rows.num_tokens = pass_key.padded_num_tokens;
    pass.step = StepAt(arrays, pass.batches, key.padded_num_seqs, kv, /*calibrated=*/nullptr);
    pass.sample = {.logits = pass.step->logits(),
                   .slots = memory.slots().sampling_slots(),
                   .sample_slot = arrays.sample_slot,
                   .sample_offset = arrays.sample_offset,
                   .out = chosen_.data_ptr<int32_t>()};
    passes.push_back(std::move(pass));
  }
  rows.pass = key.num_drafts;
  return [this, passes = std::move(passes), rows]() -> absl::Status {
    for (const Pass& pass : passes) {
      REPRISE_RETURN_IF_ERROR(options_.driver->DraftRows(pass.rows));
      REPRISE_RETURN_IF_ERROR(options_.metadata->Build(pass.batches, classes_));
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, options_.model->Forward(*pass.step));
      REPRISE_RETURN_IF_ERROR(pass.step->KeepLogits(logits));
      REPRISE_RETURN_IF_ERROR(options_.driver->Sample(pass.sample));
    }
    return options_.driver->DraftRows(rows);
  };
}

std::function<absl::Status()> DraftModel::PromptPass(const GraphKey& key,
                                                     absl::Span<const KvLayer> kv,
                                                     const KvScales* calibrated) const {
  const StepMemory& memory = *options_.memory;
  StepBatches batches = options_.metadata->BatchesAt(key, memory.arrays(), memory.slots());
  batches.before.clear();
  // Its logits are not needed, but a step has some.
  auto step = StepAt(memory.arrays(), batches, /*num_logits=*/1, kv, calibrated);
  return [this, batches = std::move(batches), step]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(options_.metadata->Build(batches, classes_));
    return options_.model->Forward(*step).status();
  };
}

void DraftModel::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("draft logits", logits_.data_ptr());
  fingerprint.AddAddress("draft tokens", chosen_.data_ptr());
}

}  // namespace reprise
