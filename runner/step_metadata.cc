#include "reprise/runner/step_metadata.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "glog/logging.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<StepMetadata>> StepMetadata::Create(
    const StepMetadataOptions& options, DeviceDriver* driver) {
  auto metadata = std::unique_ptr<StepMetadata>(new StepMetadata(options, driver));
  for (int i = 0; i < options.classes.num_classes(); ++i) {
    REPRISE_RETURN_IF_ERROR(metadata->Allocate(i));
  }
  if (!options.within.empty()) REPRISE_RETURN_IF_ERROR(metadata->AllocateWithin());
  return metadata;
}

StepMetadata::StepMetadata(const StepMetadataOptions& options, DeviceDriver* driver)
    : options_(options),
      driver_(driver),
      tile_schedules_(options.classes.num_classes()),
      decode_schedules_(options.classes.num_classes()),
      draft_schedules_(options.classes.num_classes()),
      cascade_schedules_(options.classes.num_classes()),
      local_rows_(options.classes.num_classes()) {}

TileScheduleOptions StepMetadata::ScheduleOptionsOf(const AttentionParams& params, DType q_dtype,
                                                    const KernelChoice& kernels) const {
  return {.dtype = q_dtype,
          .num_q_heads = params.num_q_heads,
          .num_kv_heads = params.num_kv_heads,
          .head_dim_qk = params.head_dim_qk,
          .head_dim_v = params.head_dim_v,
          .max_rows = options_.max_rows,
          .max_tokens = options_.max_tokens,
          .max_query_len = options_.max_tokens,
          .max_seq_len = options_.max_seq_len,
          .mode = options_.mode,
          .decode_query_len = options_.decode_query_len,
          .kernels = KernelsFor(params, kernels),
          .costs = options_.costs};
}

absl::StatusOr<TileSchedule> StepMetadata::NewSchedule(const TileScheduleOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan plan, driver_->PlanWork(options));
  memory_.push_back(
      at::empty({plan.workspace_bytes}, at::TensorOptions(options_.device).dtype(at::kByte)));
  return MakeTileSchedule(plan, memory_.back().data_ptr());
}

absl::Status StepMetadata::AllocateWithin() {
  before_schedules_.resize(tile_schedules_.size());
  for (size_t i = 0; i < tile_schedules_.size(); ++i) {
    const LayerClass& layer_class = options_.classes.classes[i];
    if (layer_class.batch != ClassBatch::kRows) continue;
    REPRISE_ASSIGN_OR_RETURN(
        before_schedules_[i],
        NewSchedule(ScheduleOptionsOf(options_.layers[layer_class.first_layer])));
  }
  for (const AttentionParams& params : options_.within) {
    TileScheduleOptions plan = ScheduleOptionsOf(params, options_.dtype, {});
    plan.max_seq_len = options_.max_tokens;
    REPRISE_ASSIGN_OR_RETURN(within_schedules_.emplace_back(), NewSchedule(plan));
  }
  return absl::OkStatus();
}

TileScheduleOptions StepMetadata::ClassMapOptions(int index, int max_tokens,
                                                  int max_query_len) const {
  const LayerClass& layer_class = options_.classes.classes[index];
  TileScheduleOptions plan = ScheduleOptionsOf(options_.layers[layer_class.first_layer]);
  plan.max_tokens = max_tokens;
  plan.max_query_len = max_query_len;
  if (layer_class.batch == ClassBatch::kLocalRows) {
    const int chunk_size = *layer_class.chunk_size;
    plan.max_rows = MaxLocalRows(options_.max_rows, max_tokens, chunk_size);
    plan.max_query_len = std::min(max_query_len, chunk_size);
    plan.max_seq_len = std::min(options_.max_seq_len, chunk_size);
  } else if (layer_class.batch == ClassBatch::kEncoderKeys) {
    plan.max_seq_len = options_.max_encoder_tokens;
  }
  return plan;
}

bool StepMetadata::TakesPrefix(int index) const {
  const LayerClass& layer_class = options_.classes.classes[index];
  const AttentionParams& params = options_.layers[layer_class.first_layer].params;
  return options_.shared_prefix == SharedPrefix::kTaken && layer_class.batch == ClassBatch::kRows &&
         !params.window_left.has_value();
}

absl::Status StepMetadata::Allocate(int index) {
  const LayerClass& layer_class = options_.classes.classes[index];
  if (layer_class.batch == ClassBatch::kContiguous) return absl::OkStatus();
  const TileScheduleOptions largest =
      ClassMapOptions(index, options_.max_tokens, /*max_query_len=*/options_.max_tokens);
  if (layer_class.batch == ClassBatch::kLocalRows) AllocateLocalRows(index, largest.max_rows);
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan plan, driver_->PlanWork(largest));
  const auto plan_for = [&](int query_len) {
    return driver_->PlanWork(
        options_.mode == TileScheduleMode::kDeterministic
            ? largest
            : ClassMapOptions(index, options_.max_rows * query_len, query_len));
  };
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan decode_plan, plan_for(1));
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan draft_plan, plan_for(1 + options_.max_drafts));
  TileSchedulePlan cascade_plan;
  if (TakesPrefix(index)) {
    TileScheduleOptions cascade = ClassMapOptions(index, options_.max_rows, /*max_query_len=*/1);
    cascade.shared_prefix = SharedPrefix::kTaken;
    cascade.shared_tiles = SharedTiles::kSmall;
    REPRISE_ASSIGN_OR_RETURN(cascade_plan, driver_->PlanWork(cascade));
  }
  // Each pass over the class uses one of these four schedules.
  const int64_t bytes = std::max({plan.workspace_bytes, decode_plan.workspace_bytes,
                                  draft_plan.workspace_bytes, cascade_plan.workspace_bytes});
  memory_.push_back(at::empty({bytes}, at::TensorOptions(options_.device).dtype(at::kByte)));
  tile_schedules_[index] = MakeTileSchedule(plan, memory_.back().data_ptr());
  decode_schedules_[index] = MakeTileSchedule(decode_plan, memory_.back().data_ptr());
  draft_schedules_[index] = MakeTileSchedule(draft_plan, memory_.back().data_ptr());
  if (TakesPrefix(index)) {
    cascade_schedules_[index] = MakeTileSchedule(cascade_plan, memory_.back().data_ptr());
  }
  return absl::OkStatus();
}

void StepMetadata::AllocateLocalRows(int index, int max_rows) {
  const auto array = [&](int64_t count) {
    memory_.push_back(at::zeros({count}, at::TensorOptions(options_.device).dtype(at::kInt)));
    return memory_.back().data_ptr<int32_t>();
  };
  local_rows_[index] = {.query_start_loc = array(int64_t{max_rows} + 1),
                        .seq_lens = array(max_rows),
                        .table_row = array(max_rows),
                        .key_start = array(max_rows),
                        .max_rows = max_rows};
}

StepBatches StepMetadata::BatchesAt(const GraphKey& key, const StepArrays& arrays,
                                    const SlotState& slots) const {
  StepBatches batches;
  batches.rows = {.query_start_loc = arrays.query_start_loc,
                  .seq_lens = arrays.seq_lens,
                  .table_row = arrays.table_row,
                  .block_table = slots.block_table,
                  .block_table_stride = slots.block_table_stride,
                  .num_rows = key.padded_num_seqs,
                  .num_tokens = key.padded_num_tokens,
                  .max_query_len = key.max_query_len,
                  .max_seq_len = options_.max_seq_len,
                  .num_tables = slots.num_slots,
                  .max_blocks = slots.max_blocks};
  if (key.num_drafts > 0 && arrays.has_trees()) {
    batches.rows.query_positions = arrays.positions;  // positions of nodes, for windows and ALiBi
    batches.rows.tail_len = arrays.tail_len;
    batches.rows.tail_mask = arrays.tail_mask;
  }
  for (int i = 0; i < options_.classes.num_classes(); ++i) {
    const LayerClass& layer_class = options_.classes.classes[i];
    PagedBatch batch = batches.rows;
    if (layer_class.kv_group) batch.block_table = slots.table(*layer_class.kv_group);
    switch (layer_class.batch) {
      case ClassBatch::kRows:
        break;
      case ClassBatch::kLocalRows: {
        const LocalVirtualBatchArgs args = {
            .batch = batch, .chunk_size = *layer_class.chunk_size, .buffers = local_rows_[i]};
        const absl::Status status = CheckLocalVirtualBatch(args);
        // Cannot fail: rows are causal, and the buffers hold the largest step.
        CHECK(status.ok()) << status;
        batch = LocalVirtualBatch(args);
        break;
      }
      case ClassBatch::kEncoderKeys:  // refill writes the encoder lengths
        batch = CrossBatch({.rows = batch,
                            .table = TableOf(batch, /*block_size=*/1),  // not read
                            .max_encoder_len = options_.max_encoder_tokens,
                            .seq_lens = arrays.encoder_lens});
        break;
      case ClassBatch::kContiguous:
        batch = {};
        break;
    }
    batches.of_class.push_back(batch);
  }
  // The decode schedules hold one token per row.
  const bool is_decode = key.max_query_len <= 1 && key.padded_num_tokens <= options_.max_rows;
  const bool is_drafts = key.num_drafts > 0 && key.max_query_len <= 1 + options_.max_drafts;
  const std::vector<TileSchedule>& schedules = is_decode   ? decode_schedules_
                                               : is_drafts ? draft_schedules_
                                                           : tile_schedules_;
  for (int i = 0; i < options_.classes.num_classes(); ++i) {
    const bool takes_prefix = key.cascade && is_decode && TakesPrefix(i);
    if (takes_prefix) batches.of_class[i].common_prefix_len = arrays.common_prefix_len;
    batches.work.push_back(WorkOf(batches.of_class[i], WindowOfClass(i),
                                  takes_prefix ? cascade_schedules_[i] : schedules[i]));
  }
  if (!options_.within.empty() && key.max_query_len > 1) AddWithin(arrays, batches);
  return batches;
}

void StepMetadata::AddWithin(const StepArrays& arrays, StepBatches& batches) const {
  for (int i = 0; i < options_.classes.num_classes(); ++i) {
    PagedBatch before;
    if (options_.classes.classes[i].batch == ClassBatch::kRows) {
      before = batches.of_class[i];
      before.seq_lens = arrays.context_lens;
      before.query_positions = arrays.positions;  // for windows
      before.causal = false;                      // all keys precede the queries
    }
    batches.before.push_back(before);
    batches.before_work.push_back(WorkOf(before, WindowOfClass(i), before_schedules_[i]));
  }
  batches.within = {.query_start_loc = batches.rows.query_start_loc,
                    .key_start_loc = batches.rows.query_start_loc,
                    .num_rows = batches.rows.num_rows,
                    .num_tokens = batches.rows.num_tokens,
                    .num_keys = batches.rows.num_tokens,
                    .max_query_len = batches.rows.max_query_len,
                    .max_seq_len = batches.rows.max_query_len};
  for (size_t i = 0; i < within_schedules_.size(); ++i) {
    batches.within_work.push_back(
        WorkOf(batches.within, WindowOf(options_.within[i]), within_schedules_[i]));
  }
}

LayerWindow StepMetadata::WindowOfClass(int index) const {
  return WindowOf(options_.layers[options_.classes.classes[index].first_layer].params);
}

std::vector<int> StepMetadata::ClassesOf(int begin, int end) const {
  std::vector<int> classes(options_.classes.class_of_layer.begin() + begin,
                           options_.classes.class_of_layer.begin() + end);
  std::sort(classes.begin(), classes.end());
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  return classes;
}

absl::Status StepMetadata::Build(const StepBatches& batches, absl::Span<const int> classes) const {
  // Each class occupies only a few CTAs for a few microseconds, so classes run concurrently.
  const int num_classes = static_cast<int>(classes.size());
  const int num_within = batches.has_within() ? static_cast<int>(within_schedules_.size()) : 0;
  return driver_->InLanes(num_classes + num_within, [&](int lane) -> absl::Status {
    if (lane < num_classes) return BuildClass(batches, classes[lane]);
    const int i = lane - num_classes;
    return driver_->BuildWork(options_.within[i], batches.within, within_schedules_[i]);
  });
}

absl::Status StepMetadata::BuildClass(const StepBatches& batches, int index) const {
  const LayerClass& layer_class = options_.classes.classes[index];
  if (layer_class.batch == ClassBatch::kContiguous) return absl::OkStatus();
  const AttentionParams& params = options_.layers[layer_class.first_layer].params;
  if (layer_class.batch == ClassBatch::kLocalRows) {
    REPRISE_RETURN_IF_ERROR(driver_->BuildLocalRows({.batch = batches.rows,
                                                     .chunk_size = *layer_class.chunk_size,
                                                     .buffers = local_rows_[index]}));
  }
  REPRISE_RETURN_IF_ERROR(
      driver_->BuildWork(params, batches.of_class[index], batches.work[index].schedule));
  if (!batches.has_within() || layer_class.batch != ClassBatch::kRows) return absl::OkStatus();
  return driver_->BuildWork(params, batches.before[index], before_schedules_[index]);
}

void StepMetadata::AddTo(Fingerprint& fingerprint) const {
  for (const at::Tensor& tensor : memory_) {
    fingerprint.AddAddress("step_metadata", tensor.const_data_ptr());
  }
}

}  // namespace reprise
