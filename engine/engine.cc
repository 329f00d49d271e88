#include "engine/engine.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "engine/step_output.h"
#include "engine/step_runner.h"
#include "runner/sampling/logits_params.h"
#include "runner/sampling/logits_request.h"
#include "runner/speculation/draft_levels.h"

namespace reprise {
namespace {

PreemptionCosts CostsOf(const EngineOptions& options, const ModelRunner& runner) {
  if (options.preemption_costs.has_value()) return *options.preemption_costs;
  const std::optional<StepTimes>& times = runner.step_times();
  if (!times.has_value()) return H200PreemptionCosts();
  return WithMeasuredSteps(H200PreemptionCosts(), times->num_tokens, times->largest_us,
                           times->least_us);
}

}  // namespace

class Engine::ModelSteps final : public StepRunner {
 public:
  explicit ModelSteps(ModelRunner* runner) : runner_(*runner) {}

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return runner_.CheckTokens(argument, tokens);
  }

  absl::Status CheckEmbeddings(std::string_view argument,
                               const EmbeddingRows& rows) const override {
    return runner_.CheckEmbeddings(argument, rows);
  }

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return runner_.CheckLogitsRequest(request);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    REPRISE_ASSIGN_OR_RETURN(const StepTicket ticket, runner_.Launch(batch));
    return ticket.step;
  }

  absl::StatusOr<StepOutput> Await(int64_t ticket) override {
    REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_.Await({.step = ticket}));
    logits_ = result.logits;
    earlier_logits_ = result.earlier_logits;
    return StepOutput{.tokens = result.tokens,
                      .log_probs = result.log_probs,
                      .earlier_log_probs = result.earlier_log_probs,
                      .num_new_tokens = result.num_new_tokens,
                      .new_tokens = result.new_tokens,
                      .stride = 1 + runner_.max_drafts()};
  }

  absl::Status status() const override { return runner_.status(); }
  int64_t num_replays() const override { return runner_.graph_report().num_replays(); }
  int64_t num_eager_steps() const override { return runner_.graph_report().num_eager_steps(); }

  at::Tensor logits(const TokenEvent& event) const {
    const at::Tensor& logits = event.earlier < 0 ? logits_ : earlier_logits_;
    if (!event.token.has_value() || !logits.defined() || event.row < 0) return at::Tensor();
    return logits[event.earlier < 0 ? event.row : event.earlier];
  }

 private:
  ModelRunner& runner_;
  at::Tensor logits_, earlier_logits_;  // of the step that was awaited last
};

absl::StatusOr<RequestEmbeddings> RequestEmbeddingsOf(int first_token, const at::Tensor& rows,
                                                      std::string content) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("rows", rows, {"tokens", "dim"}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("rows", rows));
  REPRISE_RETURN_IF_ERROR(CheckDType("rows", rows, {at::kFloat, at::kHalf, at::kBFloat16}));
  const bool is_on_gpu = rows.is_cuda();
  return RequestEmbeddings{.first_token = first_token,
                           .rows = {.data = rows.data_ptr(),
                                    // Of a single row LibTorch allows any.
                                    .row_stride = std::max(rows.stride(0), rows.size(1)),
                                    .num_rows = static_cast<int>(rows.size(0)),
                                    .dim = static_cast<int>(rows.size(1)),
                                    .dtype = *FromScalarType(rows.scalar_type()),
                                    .gpu = is_on_gpu ? rows.device().index() : kHostMemory},
                           .owner = std::make_shared<const at::Tensor>(rows),
                           .content = std::move(content)};
}

namespace {

// Of trees that the runner proposes: SchedulerOptions::level_drafts.
std::vector<int> LevelDraftsOf(const SpeculationOptions& drafts) {
  std::vector<int> level_drafts;
  if (drafts.tree.empty()) return level_drafts;
  const DraftLevels levels = LevelsOf(drafts.tree, drafts.max_drafts);
  for (int i = 1; i <= levels.num_levels(); ++i) level_drafts.push_back(levels.first[i + 1] - 1);
  return level_drafts;
}

// The drafts of decodes: as the options say, and no more than the runner proposes.
absl::StatusOr<SpeculationPolicy> PolicyOf(const EngineOptions& options) {
  const SpeculationOptions& drafts = options.runner.speculation;
  const bool proposes = drafts.proposer != SpeculationOptions::Proposer::kNone;
  const int most = !proposes             ? 0
                   : drafts.tree.empty() ? drafts.max_drafts
                                         : static_cast<int>(LevelDraftsOf(drafts).size());
  if (!options.speculation.has_value()) return SpeculationPolicy{.num_drafts = most};
  if (options.speculation->num_drafts > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "speculation.num_drafts must be at most what runner.speculation proposes: expected at "
        "most ",
        most, proposes ? "" : " (it has no proposer)", ", got ", options.speculation->num_drafts));
  }
  return *options.speculation;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Model* model, const EngineOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const SpeculationPolicy speculation, PolicyOf(options));
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner,
                           ModelRunner::Create(model, options.runner));
  auto steps = std::make_unique<ModelSteps>(runner.get());
  REPRISE_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineCore> core,
      EngineCore::Create(
          steps.get(),
          {.scheduler = {.max_num_seqs = runner->max_num_seqs(),
                         .max_num_tokens = runner->max_num_tokens(),
                         .prefill_chunk = options.prefill_chunk,
                         .max_prefill_tokens_while_decoding =
                             options.max_prefill_tokens_while_decoding,
                         .max_seq_len = runner->max_seq_len(),
                         .max_steps_in_flight = runner->max_steps_in_flight(),
                         .max_waiting = options.max_waiting,
                         .num_blocks = runner->num_blocks(),
                         .block_size = runner->block_size(),
                         .groups = {runner->kv_groups().begin(), runner->kv_groups().end()},
                         .max_encoder_tokens = runner->max_encoder_tokens(),
                         .max_encoder_step_tokens = runner->max_encoder_step_tokens(),
                         .num_position_dims = runner->num_position_dims(),
                         .max_position = model->spec().max_position,
                         .mask_words = options.runner.logits.allowed_tokens
                                           ? static_cast<int>(MaskWords(model->spec().vocab_size))
                                           : 0,
                         .max_earlier_logits = options.runner.max_earlier_logits,
                         .speculation = speculation,
                         .level_drafts = LevelDraftsOf(options.runner.speculation),
                         .prefix_reuse = options.prefix_reuse,
                         .partial_hits = options.partial_hits,
                         .num_swap_blocks = runner->num_swap_blocks(),
                         .bytes_per_block = runner->bytes_per_block(),
                         .preemption = options.preemption,
                         .preemption_costs = CostsOf(options, *runner),
                         .seed = options.seed},
           .clock = options.clock,
           .trace = options.runner.trace}));
  return std::unique_ptr<Engine>(new Engine(std::move(runner), std::move(steps), std::move(core)));
}

Engine::Engine(std::unique_ptr<ModelRunner> runner, std::unique_ptr<ModelSteps> steps,
               std::unique_ptr<EngineCore> core)
    : runner_(std::move(runner)), steps_(std::move(steps)), core_(std::move(core)) {}

Engine::~Engine() = default;

at::Tensor Engine::logits(const TokenEvent& event) const { return steps_->logits(event); }

}  // namespace reprise
