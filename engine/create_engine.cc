#include "reprise/engine/create_engine.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"
#include "reprise/engine/ranked_steps.h"
#include "reprise/runner/slots/embedding_rows.h"

namespace reprise {
namespace {

EngineOptions EngineOptionsOf(const ModelEngineOptions& options) {
  return {
      .scheduler = options.scheduler, .clock = options.clock, .trace = options.runner.debug.trace};
}

// Creates the runner of this rank. If one rank fails, all ranks return an error.
absl::StatusOr<std::unique_ptr<ModelRunner>> CreateRunner(Model* model,
                                                          const ModelEngineOptions& options) {
  Collectives* const collectives = options.runner.ranks.collectives;
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = ModelRunner::Create(model, options.runner);
  if (collectives == nullptr) return runner;
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, runner.status()));
  const ModelRunner& made = **runner;
  REPRISE_RETURN_IF_ERROR(
      StatusOverRanks(collectives, Engine::CheckOptions(made, EngineOptionsOf(options))));
  const RunnerShape& shape = made.shape();
  // The runners have compared their options; the values derived from them must be equal too.
  REPRISE_RETURN_IF_ERROR(CheckSameOverRanks(
      collectives, {"num_blocks", "num_swap_blocks", "num_kv_groups", "samples_shards"},
      {shape.num_blocks, shape.num_swap_blocks, static_cast<int64_t>(shape.groups.size()),
       made.samples_shards() ? 1 : 0}));
  return runner;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(Model* model,
                                                     const ModelEngineOptions& options) {
  Collectives* const collectives = options.runner.ranks.collectives;
  if (RanksOf(collectives).rank != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "runner.ranks.collectives must belong to rank 0; other ranks call FollowEngine(): "
        "got rank ",
        collectives->ranks().rank));
  }
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StepRunner> runner, CreateRunner(model, options));
  if (RanksOf(collectives).world > 1) {
    runner = std::make_unique<RankedSteps>(std::move(runner), collectives);
  }
  return Engine::Create(std::move(runner), EngineOptionsOf(options));
}

absl::Status FollowEngine(Model* model, const ModelEngineOptions& options) {
  Collectives* const collectives = options.runner.ranks.collectives;
  if (RanksOf(collectives).rank == 0) {
    return absl::InvalidArgumentError(
        "runner.ranks.collectives must belong to a rank other than 0, which calls CreateEngine(): "
        "got rank 0");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRunner> runner, CreateRunner(model, options));
  return FollowSteps(*runner, *collectives);
}

const ModelRunner& ModelRunnerOf(const Engine& engine) {
  const auto* const runner = dynamic_cast<const ModelRunner*>(&engine.runner().local());
  CHECK_NE(runner, nullptr) << "the engine was not made by CreateEngine()";
  return *runner;
}

absl::StatusOr<at::Tensor> LogitsOf(const Engine& engine, const TokenEvent& event) {
  if (!event.token.has_value() || event.row < 0) {
    return absl::InvalidArgumentError("event must have a token that a step computed: got none");
  }
  const ModelRunner& runner = ModelRunnerOf(engine);
  if (event.earlier < 0) {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, runner.logits(event.step));
    return logits[event.row];
  }
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, runner.earlier_logits(event.step));
  return logits[event.earlier];
}

absl::StatusOr<RequestEmbeddings> RequestEmbeddingsOf(int first_token, const at::Tensor& rows,
                                                      std::string content) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("rows", rows, {"tokens", "dim"}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("rows", rows));
  REPRISE_RETURN_IF_ERROR(CheckDType("rows", rows, {at::kFloat, at::kHalf, at::kBFloat16}));
  // LibTorch allows any stride of a single row.
  const int64_t row_stride = rows.size(0) > 1 ? rows.stride(0) : rows.size(1);
  if (row_stride < rows.size(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows must not overlap: expected a stride of at least ", rows.size(1),
                     " elements, got ", row_stride));
  }
  const bool is_on_gpu = rows.is_cuda();
  return RequestEmbeddings{.first_token = first_token,
                           .rows = {.data = rows.data_ptr(),
                                    .row_stride = row_stride,
                                    .num_rows = static_cast<int>(rows.size(0)),
                                    .dim = static_cast<int>(rows.size(1)),
                                    .dtype = *FromScalarType(rows.scalar_type()),
                                    .gpu = is_on_gpu ? rows.device().index() : kHostMemory},
                           .owner = std::make_shared<const at::Tensor>(rows),
                           .content = std::move(content)};
}

}  // namespace reprise
