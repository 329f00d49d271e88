#include "reprise/attention/torch_ops/work_plan.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/base/dtype.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int64_t kAlignment = 256;

// The elements of the tensor.
enum PlanField {
  kWorkspaceBytes,
  kDType,
  kNumQHeads,
  kNumKvHeads,
  kHeadDimQk,
  kHeadDimV,
  kMaxRows,
  kMaxTokens,
  kMaxQueryLen,
  kMaxSeqLen,
  kNumSms,
  kMode,
  kSharedPrefix,
  kProducts,  // 0: the default for q, otherwise 1 + the DType
  kMaxSplits,
  kMaxSharedBytes,
  kComputeCapability,
  kMaxTier,
  kNumFields,
};

absl::StatusOr<TileSchedulePlan> CheckedPlan(const at::Tensor& plan) {
  REPRISE_ASSIGN_OR_RETURN(const TileScheduleOptions options, ReadPlanTensor(plan));
  return PlanTileSchedule(options);
}

}  // namespace

absl::StatusOr<at::Tensor> MakePlanTensor(const TileScheduleOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan plan, PlanTileSchedule(options));
  at::Tensor tensor = at::empty({kNumFields}, at::TensorOptions().dtype(at::kLong));
  int64_t* const fields = tensor.mutable_data_ptr<int64_t>();
  fields[kWorkspaceBytes] = plan.workspace_bytes;
  fields[kDType] = static_cast<int64_t>(options.dtype);
  fields[kNumQHeads] = options.num_q_heads;
  fields[kNumKvHeads] = options.num_kv_heads;
  fields[kHeadDimQk] = options.head_dim_qk;
  fields[kHeadDimV] = options.head_dim_v;
  fields[kMaxRows] = options.max_rows;
  fields[kMaxTokens] = options.max_tokens;
  fields[kMaxQueryLen] = options.max_query_len;
  fields[kMaxSeqLen] = options.max_seq_len;
  fields[kNumSms] = options.device.num_sms;
  fields[kMode] = static_cast<int64_t>(options.mode);
  fields[kSharedPrefix] = static_cast<int64_t>(options.shared_prefix);
  fields[kMaxSplits] = options.max_splits;
  fields[kMaxSharedBytes] = options.device.max_shared_bytes;
  fields[kComputeCapability] = options.device.compute_capability;
  const std::optional<DType>& products = options.kernels.products;
  fields[kProducts] = products ? 1 + static_cast<int64_t>(*products) : 0;
  fields[kMaxTier] = options.kernels.max_tier;
  return tensor;
}

absl::StatusOr<TileScheduleOptions> ReadPlanTensor(const at::Tensor& plan) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("plan", plan, {int{kNumFields}}, at::kLong));
  REPRISE_RETURN_IF_ERROR(CheckDevice("plan", plan, at::kCPU));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("plan", plan));
  const int64_t* const fields = plan.const_data_ptr<int64_t>();
  for (int i = kDType; i < kNumFields; ++i) {
    if (fields[i] < 0 || fields[i] > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan must come from tile_schedule_plan: expected a 32-bit count at ", i,
                       ", got ", fields[i]));
    }
  }
  if (fields[kDType] > static_cast<int64_t>(DType::kFp8E5M2) ||
      fields[kProducts] > 1 + static_cast<int64_t>(DType::kFp8E5M2) ||
      fields[kSharedPrefix] > static_cast<int64_t>(SharedPrefix::kTaken) ||
      fields[kMode] > static_cast<int64_t>(TileScheduleMode::kDeterministic)) {
    return absl::InvalidArgumentError(
        "plan must come from tile_schedule_plan: its dtype, products, prefix or mode does not "
        "exist");
  }
  const auto field = [fields](PlanField i) { return static_cast<int>(fields[i]); };
  std::optional<DType> products;
  if (field(kProducts) > 0) products = static_cast<DType>(field(kProducts) - 1);
  return TileScheduleOptions{
      .dtype = static_cast<DType>(field(kDType)),
      .num_q_heads = field(kNumQHeads),
      .num_kv_heads = field(kNumKvHeads),
      .head_dim_qk = field(kHeadDimQk),
      .head_dim_v = field(kHeadDimV),
      .max_rows = field(kMaxRows),
      .max_tokens = field(kMaxTokens),
      .max_query_len = field(kMaxQueryLen),
      .max_seq_len = field(kMaxSeqLen),
      .device = {.num_sms = field(kNumSms),
                 .max_shared_bytes = field(kMaxSharedBytes),
                 .compute_capability = field(kComputeCapability)},
      .mode = static_cast<TileScheduleMode>(field(kMode)),
      .max_splits = field(kMaxSplits),
      .kernels = {.products = products, .max_tier = field(kMaxTier)},
      .shared_prefix = static_cast<SharedPrefix>(field(kSharedPrefix)),
      // The bounds that an operator receives when it builds a schedule may differ from
      // those of the operator that uses the schedule.
      .row_assignment = RowAssignment::kByRow};
}

absl::StatusOr<at::Tensor> AllocateWorkspace(const at::Tensor& plan, at::Device device) {
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan shape, CheckedPlan(plan));
  const at::Tensor bytes =
      at::empty({shape.workspace_bytes + kAlignment}, at::TensorOptions(device).dtype(at::kByte));
  const int64_t address = reinterpret_cast<intptr_t>(bytes.const_data_ptr());
  return bytes.narrow(0, (kAlignment - address % kAlignment) % kAlignment, shape.workspace_bytes);
}

absl::StatusOr<TileSchedule> TileScheduleOver(const at::Tensor& plan, const at::Tensor& workspace,
                                              at::Device device) {
  REPRISE_ASSIGN_OR_RETURN(const TileSchedulePlan shape, CheckedPlan(plan));
  ShapeChecker dims;
  dims.Bind("plan[0]", shape.workspace_bytes);
  REPRISE_RETURN_IF_ERROR(dims.Check("workspace", workspace, {AtLeast("plan[0]")}, at::kByte));
  REPRISE_RETURN_IF_ERROR(CheckDevice("workspace", workspace, device));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("workspace", workspace));
  void* const data = workspace.mutable_data_ptr();
  if (reinterpret_cast<intptr_t>(data) % kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("workspace must be aligned: expected a multiple of ", kAlignment,
                     " bytes, got ", reinterpret_cast<intptr_t>(data) % kAlignment, " beyond one"));
  }
  return MakeTileSchedule(shape, data);
}

}  // namespace reprise
