#include "runner/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<StepMemory>> StepMemory::Allocate(const StepMemoryShape& shape,
                                                                 c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<StepMemory>> {
    auto memory = std::unique_ptr<StepMemory>(new StepMemory(device));
    REPRISE_RETURN_IF_ERROR(memory->Cut(shape));
    memory->all_logits_ =
        at::zeros({int64_t{shape.max_rows} + shape.max_earlier_logits, shape.vocab_size},
                  at::TensorOptions(device).dtype(ToScalarType(shape.logits_dtype)));
    for (int rows = 0; rows <= shape.max_rows; ++rows) {
      memory->logits_.push_back(memory->all_logits_.narrow(0, 0, rows));
    }
    return memory;
  });
}

absl::Status StepMemory::Cut(const StepMemoryShape& shape) {
  const int rows = shape.max_rows;
  const int tokens = shape.max_tokens;
  const int64_t num_logits = int64_t{rows} + shape.max_earlier_logits;
  StepBuffers& b = buffers_;
  // A row of the table starts at a multiple of 16 bytes, so that kernels may load four entries at
  // once.
  const int64_t table_stride = (int64_t{shape.max_blocks} + 3) / 4 * 4;
  REPRISE_ASSIGN_OR_RETURN(const auto table,
                           b.Plan<int32_t>("block_table", shape.num_groups * rows * table_stride));
  REPRISE_ASSIGN_OR_RETURN(const auto seq_len, b.Plan<int32_t>("seq_len", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto encoder_len, b.Plan<int32_t>("encoder_len", rows));
  // Where the model sees the positions that attention uses, there are no others.
  const int dims = shape.num_position_dims;
  REPRISE_ASSIGN_OR_RETURN(const auto position_delta,
                           b.Plan<int32_t>("position_delta", dims > 1 ? rows : 0));
  REPRISE_ASSIGN_OR_RETURN(const auto last_token, b.Plan<int32_t>("last_token", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto sample_index, b.Plan<int64_t>("sample_index", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto sampling, b.Plan<SamplingParams>("sampling", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto token_ids, b.Plan<int32_t>("token_ids", tokens));
  REPRISE_ASSIGN_OR_RETURN(const auto positions, b.Plan<int32_t>("positions", tokens));
  REPRISE_ASSIGN_OR_RETURN(
      const auto model_positions,
      b.Plan<int32_t>("model_positions", dims > 1 ? int64_t{dims} * tokens : 0));
  REPRISE_ASSIGN_OR_RETURN(const auto slot_mapping,
                           b.Plan<int64_t>("slot_mapping", int64_t{shape.num_groups} * tokens));
  REPRISE_ASSIGN_OR_RETURN(const auto query_start_loc,
                           b.Plan<int32_t>("query_start_loc", int64_t{rows} + 1));
  REPRISE_ASSIGN_OR_RETURN(const auto seq_lens, b.Plan<int32_t>("seq_lens", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto context_lens, b.Plan<int32_t>("context_lens", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto encoder_lens, b.Plan<int32_t>("encoder_lens", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto table_row, b.Plan<int32_t>("table_row", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto logits_indices,
                           b.Plan<int32_t>("logits_indices", num_logits));
  REPRISE_ASSIGN_OR_RETURN(const auto sample_slot, b.Plan<int32_t>("sample_slot", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto scored_slot, b.Plan<int32_t>("scored_slot", num_logits));
  REPRISE_ASSIGN_OR_RETURN(const auto scored_token, b.Plan<int32_t>("scored_token", num_logits));
  REPRISE_ASSIGN_OR_RETURN(const auto common_prefix_len, b.Plan<int32_t>("common_prefix_len", 1));

  // LibTorch aligns to 64 bytes on the CPU: room to begin at a multiple of kAlignment.
  bytes_ =
      at::zeros({b.bytes() + StepBuffers::kAlignment}, at::TensorOptions(device_).dtype(at::kByte));
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data_ptr());
  const uintptr_t aligned =
      (address + StepBuffers::kAlignment - 1) / StepBuffers::kAlignment * StepBuffers::kAlignment;
  REPRISE_RETURN_IF_ERROR(b.Bind(reinterpret_cast<void*>(aligned), b.bytes()));

  slots_ = {.block_table = b.data(table),
            .block_table_stride = table_stride,
            .block_table_group_stride = rows * table_stride,
            .seq_len = b.data(seq_len),
            .encoder_len = b.data(encoder_len),
            .position_delta = b.data(position_delta),
            .last_token = b.data(last_token),
            .sample_index = b.data(sample_index),
            .sampling = b.data(sampling),
            .num_slots = rows,
            .max_blocks = shape.max_blocks,
            .num_groups = shape.num_groups};
  arrays_ = {.token_ids = b.data(token_ids),
             .positions = b.data(positions),
             .model_positions = b.data(model_positions),
             .slot_mapping = b.data(slot_mapping),
             .query_start_loc = b.data(query_start_loc),
             .seq_lens = b.data(seq_lens),
             .context_lens = b.data(context_lens),
             .encoder_lens = b.data(encoder_lens),
             .table_row = b.data(table_row),
             .logits_indices = b.data(logits_indices),
             .sample_slot = b.data(sample_slot),
             .scored_slot = b.data(scored_slot),
             .scored_token = b.data(scored_token),
             .common_prefix_len = b.data(common_prefix_len),
             .max_rows = rows,
             .max_tokens = tokens,
             .max_earlier_logits = shape.max_earlier_logits,
             .num_position_dims = dims};
  return absl::OkStatus();
}

at::Tensor StepMemory::View(int32_t* array, int64_t count) const {
  return at::from_blob(array, {count}, at::TensorOptions(device_).dtype(at::kInt));
}

at::Tensor StepMemory::View(int64_t* array, int64_t count) const {
  return at::from_blob(array, {count}, at::TensorOptions(device_).dtype(at::kLong));
}

at::Tensor StepMemory::ModelPositions(int64_t num_tokens) const {
  if (arrays_.num_position_dims == 1) return View(arrays_.positions, num_tokens);
  return View(arrays_.model_positions, int64_t{arrays_.num_position_dims} * arrays_.max_tokens)
      .view({arrays_.num_position_dims, arrays_.max_tokens})
      .narrow(1, 0, num_tokens);
}

void StepMemory::FillLiveRows(absl::Span<const int32_t> query_start_loc,
                              absl::Span<const int32_t> seq_lens,
                              absl::Span<const int32_t> positions, int encoder_len) {
  const auto fill = [&](int32_t* array, absl::Span<const int32_t> values) {
    const int64_t count = static_cast<int64_t>(values.size());
    View(array, count)
        .copy_(at::from_blob(const_cast<int32_t*>(values.data()), {count},
                             at::TensorOptions(at::kInt)));
  };
  const int64_t num_rows = static_cast<int64_t>(seq_lens.size());
  fill(arrays_.query_start_loc, query_start_loc);
  fill(arrays_.seq_lens, seq_lens);
  fill(arrays_.positions, positions);
  const int64_t num_tokens = static_cast<int64_t>(positions.size());
  if (arrays_.num_position_dims > 1) {
    ModelPositions(num_tokens).copy_(View(arrays_.positions, num_tokens));
  }
  View(arrays_.encoder_lens, num_rows).fill_(encoder_len);
  View(arrays_.table_row, num_rows).copy_(at::arange(num_rows, at::TensorOptions(at::kInt)));
  View(arrays_.logits_indices, num_rows)
      .copy_(View(arrays_.query_start_loc, num_rows + 1).narrow(0, 1, num_rows) - 1);
  View(arrays_.slot_mapping, int64_t{slots_.num_groups} * arrays_.max_tokens).fill_(-1);
}

void StepMemory::Zero() { bytes_.zero_(); }

int64_t StepMemory::bytes() const {
  return buffers_.bytes() + static_cast<int64_t>(logits().nbytes());
}

void StepMemory::AddTo(Fingerprint& fingerprint) const {
  buffers_.AddTo(fingerprint);
  fingerprint.AddAddress("logits", logits().data_ptr());
}

}  // namespace reprise
