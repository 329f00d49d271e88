#include "reprise/runner/step_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

struct PlannedArrays {
  struct Array {
    int32_t* StepArrays::*pointer;
    StepBuffer<int32_t> buffer;
  };
  std::vector<Array> arrays;
  std::optional<StepBuffer<int64_t>> slot_mapping;  // unset: no arrays
  std::optional<StepBuffer<int64_t>> tail_mask;     // unset: no trees
};

enum class ArraysOf : int8_t { kStep, kDraftModel };

// Plans the arrays with the sizes in `arrays`.
absl::StatusOr<PlannedArrays> PlanArrays(const StepArrays& arrays, const StepMemoryShape& shape,
                                         ArraysOf of, StepBuffers& buffers) {
  const int num_groups = shape.num_groups;
  const bool has_trees = shape.has_trees;
  const char* prefix = of == ArraysOf::kStep ? "" : "draft_";
  const int64_t rows = arrays.max_rows;
  const int64_t tokens = arrays.max_tokens;
  const int64_t num_logits = rows + arrays.max_earlier_logits;
  const int64_t dims = arrays.num_position_dims;
  const struct {
    const char* name;
    int32_t* StepArrays::*pointer;
    int64_t count;
  } wanted[] = {
      {"token_ids", &StepArrays::token_ids, tokens},
      {"positions", &StepArrays::positions, tokens},
      {"model_positions", &StepArrays::model_positions, dims > 1 ? dims * tokens : 0},
      {"query_start_loc", &StepArrays::query_start_loc, rows + 1},
      {"seq_lens", &StepArrays::seq_lens, rows},
      {"context_lens", &StepArrays::context_lens, rows},
      {"encoder_lens", &StepArrays::encoder_lens, rows},
      {"table_row", &StepArrays::table_row, rows},
      {"logits_indices", &StepArrays::logits_indices, num_logits},
      {"sample_slot", &StepArrays::sample_slot, num_logits},
      {"sample_offset", &StepArrays::sample_offset, num_logits},
      {"first_verified", &StepArrays::first_verified, rows},
      {"num_proposed", &StepArrays::num_proposed, rows},
      {"parents", &StepArrays::parents, has_trees ? tokens : 0},
      {"tail_len", &StepArrays::tail_len, has_trees ? rows : 0},
      {"scored_slot", &StepArrays::scored_slot, num_logits},
      {"scored_token", &StepArrays::scored_token, num_logits},
      {"draft_logits", &StepArrays::draft_logits,
       of == ArraysOf::kStep && shape.keeps_draft_logits ? tokens : 0},
      {"common_prefix_len", &StepArrays::common_prefix_len, 1},
      {"output", &StepArrays::output, of == ArraysOf::kStep && shape.max_drafts > 0 ? 1 : 0},
  };
  PlannedArrays planned;
  for (const auto& array : wanted) {
    REPRISE_ASSIGN_OR_RETURN(const auto buffer,
                             buffers.Plan<int32_t>(absl::StrCat(prefix, array.name), array.count));
    planned.arrays.push_back({array.pointer, buffer});
  }
  REPRISE_ASSIGN_OR_RETURN(
      planned.slot_mapping,
      buffers.Plan<int64_t>(absl::StrCat(prefix, "slot_mapping"), num_groups * tokens));
  if (has_trees) {
    REPRISE_ASSIGN_OR_RETURN(planned.tail_mask,
                             buffers.Plan<int64_t>(absl::StrCat(prefix, "tail_mask"), tokens));
  }
  return planned;
}

void PointAtArrays(const PlannedArrays& planned, const StepBuffers& buffers, StepArrays& arrays) {
  for (const auto& [pointer, buffer] : planned.arrays) arrays.*pointer = buffers.data(buffer);
  if (planned.slot_mapping) arrays.slot_mapping = buffers.data(*planned.slot_mapping);
  if (planned.tail_mask) {
    arrays.tail_mask = reinterpret_cast<uint64_t*>(buffers.data(*planned.tail_mask));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepMemory>> StepMemory::Allocate(const StepMemoryShape& shape,
                                                                 c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<StepMemory>> {
    auto memory = std::unique_ptr<StepMemory>(new StepMemory(device));
    REPRISE_RETURN_IF_ERROR(memory->Cut(shape));
    memory->all_logits_ =
        at::zeros({int64_t{shape.max_rows} + shape.max_earlier_logits, shape.vocab_size},
                  at::TensorOptions(device).dtype(ToScalarType(shape.logits_dtype)));
    for (int rows = 0; rows <= shape.max_rows * (1 + shape.max_drafts); ++rows) {
      memory->logits_.push_back(memory->all_logits_.narrow(0, 0, rows));
    }
    return memory;
  });
}

absl::Status StepMemory::Cut(const StepMemoryShape& shape) {
  const int64_t rows = shape.max_rows;
  const int64_t dims = shape.num_position_dims;
  StepBuffers& b = buffers_;
  // Rows of the table start at multiples of 16 bytes, so that kernels may load four entries at
  // once.
  const int64_t table_stride = (int64_t{shape.max_blocks} + 3) / 4 * 4;
  REPRISE_ASSIGN_OR_RETURN(const auto table,
                           b.Plan<int32_t>("block_table", shape.num_groups * rows * table_stride));
  REPRISE_ASSIGN_OR_RETURN(const auto seq_len, b.Plan<int32_t>("seq_len", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto encoder_len, b.Plan<int32_t>("encoder_len", rows));
  // With one dimension, the model reads the positions of attention, so position_delta is not
  // needed.
  REPRISE_ASSIGN_OR_RETURN(const auto position_delta,
                           b.Plan<int32_t>("position_delta", dims > 1 ? rows : 0));
  REPRISE_ASSIGN_OR_RETURN(const auto last_token, b.Plan<int32_t>("last_token", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto sample_index, b.Plan<int64_t>("sample_index", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto sampling, b.Plan<SamplingParams>("sampling", rows));
  REPRISE_ASSIGN_OR_RETURN(const auto history,
                           b.Plan<int32_t>("history", rows * shape.history_len));
  const bool has_draft_model = shape.max_draft_query_len > 0;
  REPRISE_ASSIGN_OR_RETURN(const auto drafted_len,
                           b.Plan<int32_t>("drafted_len", has_draft_model ? rows : 0));

  arrays_ = {.max_rows = shape.max_rows,
             .max_tokens = shape.max_tokens,
             .max_earlier_logits = shape.max_earlier_logits,
             .num_position_dims = shape.num_position_dims};
  REPRISE_ASSIGN_OR_RETURN(const PlannedArrays arrays,
                           PlanArrays(arrays_, shape, ArraysOf::kStep, b));
  PlannedArrays draft_arrays;
  if (has_draft_model) {
    draft_arrays_ = {.max_rows = shape.max_rows,
                     .max_tokens = shape.max_rows * shape.max_draft_query_len,
                     .max_earlier_logits = shape.max_rows * (shape.max_draft_nodes - 1)};
    REPRISE_ASSIGN_OR_RETURN(draft_arrays,
                             PlanArrays(draft_arrays_, shape, ArraysOf::kDraftModel, b));
  }

  // LibTorch aligns to 64 bytes on the CPU: adds space to start at a multiple of kAlignment.
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
            .history = {.tokens = b.data(history), .stride = shape.history_len},
            .drafted_len = b.data(drafted_len),
            .num_slots = shape.max_rows,
            .max_blocks = shape.max_blocks,
            .num_groups = shape.num_groups};
  PointAtArrays(arrays, b, arrays_);
  PointAtArrays(draft_arrays, b, draft_arrays_);
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
