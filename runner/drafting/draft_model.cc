#include "reprise/runner/drafting/draft_model.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/slots/slot_rows.h"
#include "reprise/runner/step.h"

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

absl::StatusOr<LayerClasses> CollectClassesWithDrafter(absl::Span<const LayerSpec> layers,
                                                       int first_draft_layer) {
  REPRISE_ASSIGN_OR_RETURN(const LayerClasses seen, CollectLayerClasses(layers));
  std::vector<LayerSpec> kept(layers.begin(), layers.end());
  for (size_t i = first_draft_layer; i < kept.size(); ++i) {
    kept[i].params.window_left = std::nullopt;
    kept[i].chunk_size = std::nullopt;
  }
  // Groups depend on the keys that are retained. Classes depend on the keys that are read, and
  // differ if the group differs.
  REPRISE_ASSIGN_OR_RETURN(LayerClasses result, CollectLayerClasses(kept));
  result.classes.clear();
  std::vector<int> seen_class;  // per class of the result: its class in `seen`
  for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
    const int like = seen.class_of_layer[i];
    int found = 0;
    while (
        found < result.num_classes() &&
        (seen_class[found] != like || result.classes[found].kv_group != result.group_of_layer[i])) {
      ++found;
    }
    if (found == result.num_classes()) {
      LayerClass own = seen.classes[like];
      own.first_layer = i;
      own.kv_group = result.group_of_layer[i];
      result.classes.push_back(own);
      seen_class.push_back(like);
    }
    result.class_of_layer[i] = found;
  }
  return result;
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
    int max_width = 1;
    int max_ranks = 1;
    if (options.trees != nullptr && options.trees->tree_size() > 0) {
      const DraftLevels levels = LevelsOf(options.trees->parents(), options.trees->tree_size());
      max_width = levels.max_width();
      max_ranks = *absl::c_max_element(levels.num_ranks);
    }
    const int64_t max_logits = int64_t{options.max_num_seqs} * max_width;
    const int64_t num_kept = options.kept_logits_dtype.has_value() ? options.max_drafts : 1;
    const DType dtype = options.kept_logits_dtype.value_or(spec.logits_dtype.value_or(spec.dtype));
    draft->logits_ = at::zeros({num_kept * max_logits + 1, spec.vocab_size},
                               on_device.dtype(ToScalarType(dtype)));
    draft->chosen_ = at::zeros({max_ranks, max_logits}, on_device.dtype(at::kInt));
    return draft;
  });
}

std::shared_ptr<const Step> DraftModel::StepAt(const StepArrays& arrays, const StepBatches& batches,
                                               at::Tensor logits, absl::Span<const KvLayer> kv,
                                               const KvScales* calibrated) const {
  const StepMemory& memory = *options_.memory;
  const int64_t num_tokens = batches.rows.num_tokens;
  const int64_t num_logits = logits.size(0);
  std::vector<at::Tensor> slot_mappings;
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    slot_mappings.push_back(memory.View(arrays.group_slots(static_cast<int>(group)), num_tokens));
  }
  return std::make_shared<const Step>(
      Step::Parts{.token_ids = memory.View(arrays.token_ids, num_tokens),
                  .positions = memory.View(arrays.positions, num_tokens),
                  .slot_mappings = std::move(slot_mappings),
                  .logits_indices = memory.View(arrays.logits_indices, num_logits),
                  .logits = std::move(logits),
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

// Pass `index` of the step at `key`.
DraftModel::Pass DraftModel::PassAt(const GraphKey& key, const DraftRowsArgs& rows,
                                    const DraftLevels& levels, int index,
                                    absl::Span<const KvLayer> kv) const {
  const StepMemory& memory = *options_.memory;
  const StepArrays& arrays = memory.draft_arrays();
  const int num_rows = key.padded_num_seqs;
  const int width = levels.Width(index);
  // The first pass has up to 1 + num_drafts tokens per row. Each later pass has the nodes of one
  // level per row; in a chain, one.
  GraphKey pass_key = {.padded_num_seqs = num_rows,
                       .padded_num_tokens = num_rows * width,
                       .max_query_len = width,
                       .num_drafts = levels.is_tree ? key.num_drafts : 0};
  if (index == 0) {
    pass_key.max_query_len = 1 + key.num_drafts;
    pass_key.padded_num_tokens = num_rows * pass_key.max_query_len;
    pass_key.num_drafts = key.num_drafts;
  }
  Pass pass = {.rows = rows,
               .batches = options_.metadata->BatchesAt(pass_key, arrays, memory.slots())};
  pass.batches.before.clear();  // used only by the model's AttendBefore()
  pass.rows.pass = index;
  pass.rows.rows.num_tokens = pass_key.padded_num_tokens;
  const int64_t first_logits = int64_t{index} * rows.logits_stride;
  pass.step =
      StepAt(arrays, pass.batches, logits_.narrow(0, first_logits, int64_t{num_rows} * width), kv,
             /*calibrated=*/nullptr);
  for (int rank = 0; rank < levels.num_ranks[index]; ++rank) {
    pass.samples.push_back({.logits = pass.step->logits(),
                            .slots = memory.slots().sampling_slots(),
                            .sample_slot = arrays.sample_slot,
                            .sample_offset = arrays.sample_offset,
                            .out = chosen_[rank].data_ptr<int32_t>()});
  }
  return pass;
}

// Samples one token per child index. Each sampled token is masked before the next is sampled.
absl::Status DraftModel::Choose(const Pass& pass) const {
  const at::Tensor& logits = pass.step->logits();
  for (size_t rank = 0; rank < pass.samples.size(); ++rank) {
    if (rank > 0) {
      // If a row sampled no token, this masks token 0: the row samples no token again.
      const at::Tensor chosen =
          chosen_[static_cast<int64_t>(rank) - 1].narrow(0, 0, logits.size(0)).clamp_min(0);
      at::Tensor left = logits;
      left.scatter_(1, chosen.to(at::kLong).unsqueeze(1), -std::numeric_limits<float>::infinity());
    }
    REPRISE_RETURN_IF_ERROR(options_.driver->Sample(pass.samples[rank]));
  }
  return absl::OkStatus();
}

DraftRowsArgs DraftModel::RowsAt(const GraphKey& key, int num_blocks) const {
  const StepMemory& memory = *options_.memory;
  const StepArrays& arrays = memory.arrays();
  const StepArrays& draft = memory.draft_arrays();
  const SlotState& slots = memory.slots();
  // A group without a draft layer requires no blocks: the model's window may have released some.
  const auto& group_of_layer = options_.metadata->classes().group_of_layer;
  KvGroupSpec groups[kMaxKvGroups] = {};
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    const bool has_layer =
        std::find(group_of_layer.begin() + options_.first_layer, group_of_layer.end(),
                  static_cast<int>(group)) != group_of_layer.end();
    groups[group] =
        has_layer ? options_.groups[group] : KvGroupSpec{.retention = KvRetention::kCross};
  }
  DraftRowsArgs rows = {
      .rows = SlotRowArgs(slots, options_.block_size, num_blocks, groups, draft),
      .sample_slot = draft.sample_slot,
      .sample_offset = draft.sample_offset,
      .encoder_lens = draft.encoder_lens,
      .common_prefix_len = draft.common_prefix_len,
      .tail_len = draft.tail_len,
      .tail_mask = draft.tail_mask,
      .num_logits = draft.max_rows + draft.max_earlier_logits,
      .drafted_len = slots.drafted_len,
      .history = slots.history,
      .step = {.token_ids = arrays.token_ids,
               .query_start_loc = arrays.query_start_loc,
               .context_lens = arrays.context_lens,
               .slot_of_row = arrays.table_row,
               .num_proposed = arrays.num_proposed,
               .parents = {.nodes = arrays.parents},
               .draft_logits = arrays.draft_logits,
               .num_tokens = arrays.max_tokens},
      .chosen = chosen_.const_data_ptr<int32_t>(),
      .logits_stride = options_.kept_logits_dtype.has_value() ? options_.max_num_seqs : 0,
      .max_drafts = key.num_drafts};
  rows.rows.num_rows = key.padded_num_seqs;
  return rows;
}

std::function<absl::Status()> DraftModel::Passes(const GraphKey& key, absl::Span<const KvLayer> kv,
                                                 int num_blocks) const {
  const StepMemory& memory = *options_.memory;
  const DraftTrees* trees = options_.trees;
  const DraftLevels levels =
      LevelsOf(trees == nullptr ? absl::Span<const int>() : trees->parents(), key.num_drafts);
  DraftRowsArgs rows = RowsAt(key, num_blocks);
  const int num_passes = levels.num_levels();
  std::vector<Pass> passes;
  for (int i = 0; i <= num_passes; ++i) {
    if (levels.is_tree) {
      rows.level = {.num_levels = num_passes,
                    .first_before = i == 0 ? 0 : levels.first[i - 1],
                    .first = levels.first[i],
                    .end = levels.first[i + 1],
                    .ranks = trees->ranks(),
                    .rank_stride = chosen_.size(1)};
    }
    if (i < num_passes) passes.push_back(PassAt(key, rows, levels, i, kv));
  }
  rows.pass = num_passes;
  const at::Tensor drafted_len = memory.View(memory.slots().drafted_len, options_.max_num_seqs);
  return [this, passes = std::move(passes), rows, drafted_len]() -> absl::Status {
    // Heads compute the keys of accepted drafts again, from the model's states. The tokens that
    // they have processed therefore end with pass 0.
    at::Tensor drafted_len_of_tokens;
    for (const Pass& pass : passes) {
      REPRISE_RETURN_IF_ERROR(options_.driver->DraftRows(pass.rows));
      if (options_.heads != nullptr) {
        options_.heads->Begin(options_.memory->draft_arrays(), pass.rows.rows.num_rows,
                              pass.rows.pass, *options_.driver);
        if (pass.rows.pass == 1) drafted_len_of_tokens = drafted_len.clone();
      }
      REPRISE_RETURN_IF_ERROR(options_.metadata->Build(pass.batches, classes_));
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, options_.model->Forward(*pass.step));
      REPRISE_RETURN_IF_ERROR(pass.step->KeepLogits(logits));
      REPRISE_RETURN_IF_ERROR(Choose(pass));
    }
    REPRISE_RETURN_IF_ERROR(options_.driver->DraftRows(rows));
    if (drafted_len_of_tokens.defined()) drafted_len.copy_(drafted_len_of_tokens);
    return absl::OkStatus();
  };
}

std::function<absl::Status()> DraftModel::PromptPass(const GraphKey& key,
                                                     absl::Span<const KvLayer> kv,
                                                     const KvScales* calibrated) const {
  const StepMemory& memory = *options_.memory;
  StepBatches batches = options_.metadata->BatchesAt(key, memory.arrays(), memory.slots());
  batches.before.clear();
  // The logits of this pass are not used, but a step needs at least one row of logits.
  auto step =
      StepAt(memory.arrays(), batches, logits_.narrow(0, logits_.size(0) - 1, 1), kv, calibrated);
  const int num_rows = key.padded_num_seqs;
  return [this, batches = std::move(batches), step, num_rows]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(options_.metadata->Build(batches, classes_));
    if (options_.heads != nullptr) {
      options_.heads->Begin(options_.memory->arrays(), num_rows, HeadModel::kPromptPass,
                            *options_.driver);
    }
    return options_.model->Forward(*step).status();
  };
}

void DraftModel::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("draft logits", logits_.data_ptr());
  fingerprint.AddAddress("draft tokens", chosen_.data_ptr());
}

}  // namespace reprise
