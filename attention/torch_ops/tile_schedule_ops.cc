// torch.ops.reprise.tile_schedule_plan, tile_schedule and ragged_tile_schedule: one schedule per
// step for all layers of a class (attention/tile_schedule/tile_schedule.h). See docs/operators.md.

#include <torch/library.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/attention/torch_ops/batch_arguments.h"
#include "reprise/attention/torch_ops/device_work.h"
#include "reprise/attention/torch_ops/operator_call.h"
#include "reprise/attention/torch_ops/work_plan.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

#define REPRISE_MAP_WINDOW_SCHEMA \
  "int? num_tokens=None, int? window_left=None, int? window_right=None"

absl::Status TileSchedulePlanOp(OperatorCall& call) {
  TileScheduleOptions options;
  struct Field {
    const char* name;
    int* value;
  };
  const auto read = [&call](std::initializer_list<Field> fields) -> absl::Status {
    for (const Field& field : fields) {
      REPRISE_ASSIGN_OR_RETURN(*field.value, CountArgument(field.name, call.Int(field.name)));
    }
    return absl::OkStatus();
  };
  REPRISE_RETURN_IF_ERROR(read({{"num_q_heads", &options.num_q_heads},
                                {"num_kv_heads", &options.num_kv_heads},
                                {"head_dim_qk", &options.head_dim_qk},
                                {"head_dim_v", &options.head_dim_v},
                                {"max_rows", &options.max_rows},
                                {"max_tokens", &options.max_tokens},
                                {"max_query_len", &options.max_query_len},
                                {"max_seq_len", &options.max_seq_len}}));
  const at::ScalarType type = call.DType("dtype");
  const std::optional<DType> dtype = FromScalarType(type);
  if (!dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype must be the dtype of q: expected float32, float16, bfloat16 or fp8, got ",
        c10::toString(type)));
  }
  options.dtype = *dtype;
  options.mode =
      call.Bool("deterministic") ? TileScheduleMode::kDeterministic : TileScheduleMode::kBalanced;
  REPRISE_ASSIGN_OR_RETURN(options.device, LimitsOf(call.Device("device")));
  if (call.Bool("shared_prefix")) options.shared_prefix = SharedPrefix::kTaken;
  if (const std::optional<at::ScalarType> products = call.MaybeDType("products")) {
    options.kernels.products = FromScalarType(*products);
    if (!options.kernels.products) {
      return absl::InvalidArgumentError(
          absl::StrCat("products must be a type to multiply in: expected float32, float16 or "
                       "bfloat16, got ",
                       c10::toString(*products)));
    }
  }
  if (const std::optional<int64_t> max_splits = call.MaybeInt("max_splits")) {
    options.mode = TileScheduleMode::kDeterministic;
    REPRISE_ASSIGN_OR_RETURN(options.max_splits, CountArgument("max_splits", *max_splits));
  }
  REPRISE_ASSIGN_OR_RETURN(options.kernels.max_tier,
                           CountArgument("max_tier", call.Int("max_tier")));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor plan, MakePlanTensor(options));
  call.Return({plan});
  return absl::OkStatus();
}

struct ScheduleRequest {
  at::Tensor plan;
  std::optional<int64_t> num_tokens;
  LayerWindow window;
};

absl::Status ReadWindow(OperatorCall& call, ScheduleRequest& request) {
  request.num_tokens = call.MaybeInt("num_tokens");
  const auto read = [&call](const char* name, std::optional<int>& side) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(side, WindowArgument(name, call.MaybeInt(name)));
    return absl::OkStatus();
  };
  REPRISE_RETURN_IF_ERROR(read("window_left", request.window.left));
  return read("window_right", request.window.right);
}

// Builds the schedule in the caller's workspace, or in a new workspace.
template <typename Batch>
absl::StatusOr<at::Tensor> Build(const ScheduleRequest& request, const Batch& batch,
                                 at::Device device, std::optional<at::Tensor> workspace) {
  if (!workspace) {
    REPRISE_ASSIGN_OR_RETURN(workspace, AllocateWorkspace(request.plan, device));
  }
  REPRISE_ASSIGN_OR_RETURN(const TileSchedule schedule,
                           TileScheduleOver(request.plan, *workspace, device));
  REPRISE_RETURN_IF_ERROR(BuildWork(batch, request.window, schedule, device));
  return *workspace;
}

// The plan contains the size of the workspace in bytes, and a trace does not read the plan.
absl::Status TraceTileSchedule(OperatorCall&) {
  return absl::UnimplementedError(
      "tile_schedule and ragged_tile_schedule cannot be traced, because the size of the workspace "
      "is data of the plan: allocate a workspace outside, and call the out= form");
}

// The out= form also takes a workspace.
enum class Form { kFunctional, kOut };

template <Form form>
absl::Status TileScheduleOp(OperatorCall& call) {
  BatchArguments arguments;
  ScheduleRequest request;
  ReadBatchArguments(call, arguments);
  request.plan = call.Tensor("plan");
  ReadBatchOptions(call, arguments);
  REPRISE_RETURN_IF_ERROR(ReadWindow(call, request));
  std::optional<at::Tensor> workspace;
  if constexpr (form == Form::kOut) workspace = call.Tensor("workspace");
  REPRISE_ASSIGN_OR_RETURN(const TileScheduleOptions options, ReadPlanTensor(request.plan));
  if (!arguments.max_query_len) arguments.max_query_len = options.max_query_len;
  if (!arguments.max_seq_len) arguments.max_seq_len = options.max_seq_len;
  const at::Device device = arguments.seq_lens.device();
  REPRISE_ASSIGN_OR_RETURN(
      const PagedBatch batch,
      MakePagedBatch(arguments, request.num_tokens.value_or(options.max_tokens),
                     /*block_size=*/1, device));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor schedule, Build(request, batch, device, workspace));
  call.Return({schedule});
  return absl::OkStatus();
}

template <Form form>
absl::Status RaggedTileScheduleOp(OperatorCall& call) {
  RaggedBatchArguments arguments;
  ScheduleRequest request;
  arguments.query_start_loc = call.Tensor("query_start_loc");
  arguments.key_start_loc = call.Tensor("key_start_loc");
  request.plan = call.Tensor("plan");
  arguments.query_positions = call.MaybeTensor("query_positions");
  arguments.causal = call.Bool("causal");
  arguments.max_query_len = call.MaybeInt("max_query_len");
  arguments.max_seq_len = call.MaybeInt("max_seq_len");
  arguments.custom_mask = call.MaybeTensor("custom_mask");
  arguments.custom_mask_offset = call.MaybeTensor("custom_mask_offset");
  REPRISE_RETURN_IF_ERROR(ReadWindow(call, request));
  std::optional<at::Tensor> workspace;
  if constexpr (form == Form::kOut) workspace = call.Tensor("workspace");
  REPRISE_ASSIGN_OR_RETURN(const TileScheduleOptions options, ReadPlanTensor(request.plan));
  if (!arguments.max_query_len) arguments.max_query_len = options.max_query_len;
  if (!arguments.max_seq_len) arguments.max_seq_len = options.max_seq_len;
  const at::Device device = arguments.query_start_loc.device();
  REPRISE_ASSIGN_OR_RETURN(
      const RaggedBatch batch,
      MakeRaggedBatch(arguments, request.num_tokens.value_or(options.max_tokens),
                      /*num_keys=*/0, device));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor schedule, Build(request, batch, device, workspace));
  call.Return({schedule});
  return absl::OkStatus();
}

#define REPRISE_TILE_SCHEDULE_SCHEMA                                     \
  REPRISE_BATCH_SCHEMA ", Tensor plan, *, " REPRISE_BATCH_OPTIONS_SCHEMA \
                       ", " REPRISE_MAP_WINDOW_SCHEMA

#define REPRISE_RAGGED_TILE_SCHEDULE_SCHEMA                                   \
  "Tensor query_start_loc, Tensor key_start_loc, Tensor plan, *, "            \
  "Tensor? query_positions=None, bool causal=True, int? max_query_len=None, " \
  "int? max_seq_len=None, " REPRISE_CUSTOM_MASK_SCHEMA ", " REPRISE_MAP_WINDOW_SCHEMA

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "tile_schedule_plan(*, int num_q_heads, int num_kv_heads, int head_dim_qk, "
                 "int head_dim_v, int max_rows, int max_tokens, int max_query_len=1, "
                 "int max_seq_len, ScalarType dtype, bool deterministic=False, "
                 "Device device=\"cuda\", bool shared_prefix=False, ScalarType? products=None, "
                 "int? max_splits=None, int max_tier=2) "
                 "-> Tensor",
                 TileSchedulePlanOp);
  DefineOperator(library, "tile_schedule(" REPRISE_TILE_SCHEDULE_SCHEMA ") -> Tensor",
                 TileScheduleOp<Form::kFunctional>, TraceTileSchedule);
  DefineOperator(library,
                 "tile_schedule.out(" REPRISE_TILE_SCHEDULE_SCHEMA
                 ", Tensor(a!) workspace) -> Tensor(a!)",
                 TileScheduleOp<Form::kOut>);
  DefineOperator(library, "ragged_tile_schedule(" REPRISE_RAGGED_TILE_SCHEDULE_SCHEMA ") -> Tensor",
                 RaggedTileScheduleOp<Form::kFunctional>, TraceTileSchedule);
  DefineOperator(library,
                 "ragged_tile_schedule.out(" REPRISE_RAGGED_TILE_SCHEDULE_SCHEMA
                 ", Tensor(a!) workspace) -> Tensor(a!)",
                 RaggedTileScheduleOp<Form::kOut>);
}

}  // namespace reprise
