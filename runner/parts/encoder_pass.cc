#include "reprise/runner/parts/encoder_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<EncoderPass>> EncoderPass::Create(const EncoderPassOptions& options,
                                                                 DeviceDriver* driver) {
  auto pass = std::unique_ptr<EncoderPass>(new EncoderPass(options, driver));
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] { return pass->Allocate(); }));
  return pass;
}

EncoderPass::EncoderPass(const EncoderPassOptions& options, DeviceDriver* driver)
    : options_(options), driver_(driver), tile_schedules_(options.metadata.classes.num_classes()) {
  tables_.resize(size_t{1} * num_groups() * options.metadata.max_rows * options.max_blocks);
}

absl::Status EncoderPass::Allocate() {
  const int num_slots = options_.num_passes_in_flight + 1;
  REPRISE_ASSIGN_OR_RETURN(staging_memory_, driver_->AllocateMapped(num_slots * PassBytes()));
  std::vector<std::unique_ptr<Fence>> read;
  for (int i = 0; i < num_slots; ++i) {
    REPRISE_ASSIGN_OR_RETURN(read.emplace_back(), driver_->MakeFence());
  }
  REPRISE_ASSIGN_OR_RETURN(staging_,
                           StagingRing::Create(staging_memory_->host_bytes(), std::move(read)));
  device_memory_ =
      at::empty({PassBytes()}, at::TensorOptions(options_.metadata.device).dtype(at::kByte));
  return AllocateTileSchedules();
}

absl::Status EncoderPass::AllocateTileSchedules() {
  const StepMetadataOptions& metadata = options_.metadata;
  for (int i = 0; i < metadata.classes.num_classes(); ++i) {
    const LayerClass& layer_class = metadata.classes.classes[i];
    if (layer_class.batch != ClassBatch::kContiguous) continue;
    const LayerSpec& layer = metadata.layers[layer_class.first_layer];
    const AttentionParams& params = layer.params;
    REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan plan,
                             driver_->PlanWork({.dtype = layer.q_dtype.value_or(metadata.dtype),
                                                .num_q_heads = params.num_q_heads,
                                                .num_kv_heads = params.num_kv_heads,
                                                .head_dim_qk = params.head_dim_qk,
                                                .head_dim_v = params.head_dim_v,
                                                .max_rows = metadata.max_rows,
                                                .max_tokens = options_.max_step_tokens,
                                                .max_query_len = metadata.max_encoder_tokens,
                                                .max_seq_len = metadata.max_encoder_tokens,
                                                .mode = metadata.mode,
                                                .kernels = KernelsFor(params, layer.kernels),
                                                .costs = metadata.costs}));
    tile_schedule_memory_.push_back(
        at::empty({plan.workspace_bytes}, at::TensorOptions(metadata.device).dtype(at::kByte)));
    tile_schedules_[i] = MakeTileSchedule(plan, tile_schedule_memory_.back().data_ptr());
  }
  return absl::OkStatus();
}

int64_t EncoderPass::PassBytes() const {
  const StepMetadataOptions& sizes = options_.metadata;
  const int64_t bytes =
      int64_t{sizeof(int64_t)} * num_groups() * options_.max_step_tokens +
      int64_t{sizeof(int32_t)} * (sizes.max_rows + 1 + 2 * int64_t{options_.max_step_tokens});
  constexpr int64_t kAlignment = 256;  // alignment of the ring's slots
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

EncoderPass::Arrays EncoderPass::ArraysAt(std::byte* base) const {
  const StepMetadataOptions& sizes = options_.metadata;
  Arrays arrays;
  arrays.slot_mapping = reinterpret_cast<int64_t*>(base);
  arrays.query_start_loc = reinterpret_cast<int32_t*>(
      arrays.slot_mapping + int64_t{num_groups()} * options_.max_step_tokens);
  arrays.token_ids = arrays.query_start_loc + sizes.max_rows + 1;
  arrays.positions = arrays.token_ids + options_.max_step_tokens;
  return arrays;
}

bool EncoderPass::IsCross(int group) const {
  return options_.metadata.classes.groups[group].retention == KvRetention::kCross;
}

int32_t* EncoderPass::table_row(int group, int slot) {
  const int64_t row = int64_t{group} * options_.metadata.max_rows + slot;
  return tables_.data() + row * options_.max_blocks;
}

void EncoderPass::Follow(absl::Span<const BlockTableUpdate> updates) {
  for (const BlockTableUpdate& update : updates) {
    if (!IsCross(update.group)) continue;
    table_row(update.group, update.slot.value())[update.column] = update.block.value();
  }
}

RaggedBatch EncoderPass::Write(absl::Span<const ScheduledEncode> encodes, const Arrays& arrays) {
  const int block_size = options_.block_size;
  std::vector<int32_t> lens;
  RaggedGatherArgs rows = {.num_rows = static_cast<int>(encodes.size()),
                           .query_start_loc = arrays.query_start_loc,
                           .key_start_loc = arrays.query_start_loc,
                           .positions = arrays.positions};
  for (const ScheduledEncode& encode : encodes) {
    const auto num_tokens = static_cast<int32_t>(encode.tokens.size());
    lens.push_back(num_tokens);
    for (int group = 0; group < num_groups(); ++group) {
      if (!IsCross(group)) continue;
      int64_t* const slots =
          arrays.slot_mapping + int64_t{group} * options_.max_step_tokens + rows.num_tokens;
      const int32_t* const blocks = table_row(group, encode.slot.value());
      for (int i = 0; i < num_tokens; ++i) {
        slots[i] = int64_t{blocks[i / block_size]} * block_size + i % block_size;
      }
    }
    std::copy(encode.tokens.begin(), encode.tokens.end(), arrays.token_ids + rows.num_tokens);
    rows.num_tokens += num_tokens;
    rows.max_len = std::max(rows.max_len, num_tokens);
  }
  rows.lens = lens.data();
  RaggedGatherOnHost(rows);
  return RaggedGatherBatch(rows);
}

absl::Status EncoderPass::Run(absl::Span<const ScheduledEncode> encodes, Model& model,
                              absl::Span<const KvLayer> kv) {
  RaggedBatch batch;
  {
    StagingSlot slot = staging_->Acquire();
    batch = Write(encodes, ArraysAt(slot.bytes().data()));
    REPRISE_RETURN_IF_ERROR(
        driver_->Upload(slot.bytes().data(), device_memory_.data_ptr(), PassBytes()));
  }
  const StepMetadataOptions& metadata = options_.metadata;
  const Arrays arrays = ArraysAt(static_cast<std::byte*>(device_memory_.data_ptr()));
  batch.query_start_loc = arrays.query_start_loc;
  batch.key_start_loc = arrays.query_start_loc;
  std::vector<BatchSchedule> work(metadata.classes.num_classes());
  for (int i = 0; i < metadata.classes.num_classes(); ++i) {
    const LayerClass& layer_class = metadata.classes.classes[i];
    if (layer_class.batch != ClassBatch::kContiguous) continue;
    const AttentionParams& params = metadata.layers[layer_class.first_layer].params;
    work[i] = WorkOf(batch, WindowOf(params), tile_schedules_[i]);
    REPRISE_RETURN_IF_ERROR(driver_->BuildWork(params, batch, tile_schedules_[i]));
  }
  return driver_->OnStream([&]() -> absl::Status {
    return CatchTorch([&] {
      const auto view = [&](auto* array, at::ScalarType type) {
        return at::from_blob(array, {batch.num_tokens},
                             at::TensorOptions(metadata.device).dtype(type));
      };
      std::vector<at::Tensor> slot_mappings;
      for (int group = 0; group < num_groups(); ++group) {
        slot_mappings.push_back(
            view(arrays.slot_mapping + int64_t{group} * options_.max_step_tokens, at::kLong));
      }
      return model.Encode(EncoderStep({.token_ids = view(arrays.token_ids, at::kInt),
                                       .positions = view(arrays.positions, at::kInt),
                                       .slot_mappings = std::move(slot_mappings),
                                       .layers = metadata.layers,
                                       .kv = kv,
                                       .classes = &metadata.classes,
                                       .batch = batch,
                                       .work = work,
                                       .linears = &driver_->linears()}));
    });
  });
}

}  // namespace reprise
