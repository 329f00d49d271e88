#include "engine/engine.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "distributed/agreement.h"
#include "distributed/share.h"
#include "engine/model_steps.h"
#include "engine/ranked_steps.h"
#include "engine/step_runner.h"
#include "runner/sampling/logits_params.h"
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

// SchedulerOptions::graph_levels.
std::vector<int> GraphLevelsOf(const SpeculationOptions& drafts,
                               absl::Span<const int> graph_num_drafts) {
  const std::vector<int> level_drafts = LevelDraftsOf(drafts);
  if (level_drafts.empty()) return {graph_num_drafts.begin(), graph_num_drafts.end()};
  std::vector<int> graph_levels;
  for (const int num_drafts : graph_num_drafts) {
    const int levels =
        static_cast<int>(absl::c_upper_bound(level_drafts, num_drafts) - level_drafts.begin());
    if (levels > (graph_levels.empty() ? 0 : graph_levels.back())) graph_levels.push_back(levels);
  }
  return graph_levels;
}

DrafterKeys KeysOf(const SpeculationOptions& drafts) {
  if (drafts.draft_model != nullptr) return DrafterKeys::kOfDrafts;
  const bool has_layers = drafts.heads != nullptr && !drafts.heads->layers().empty();
  return has_layers ? DrafterKeys::kOfTokens : DrafterKeys::kNone;
}

// The drafts of decodes: as the options say, and no more than the runner proposes.
absl::StatusOr<SpeculationPolicy> PolicyOf(const EngineOptions& options) {
  const SpeculationOptions& drafts = options.runner.speculation;
  // Without a proposer drafts are those of Request::predicted_tokens.
  const int most = drafts.tree.empty() ? std::min(drafts.max_drafts, kMaxDrafts)
                                       : static_cast<int>(LevelDraftsOf(drafts).size());
  if (!options.speculation.has_value()) {
    // Texts by rejection sampling depend on which steps have drafts, so the clock must not decide it.
    return SpeculationPolicy{.num_drafts = most,
                             .measures_steps = drafts.acceptance == DraftAcceptance::kSameText};
  }
  if (options.speculation->num_drafts > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "speculation.num_drafts must be at most runner.speculation.max_drafts: expected at most ",
        most, ", got ", options.speculation->num_drafts));
  }
  return *options.speculation;
}

}  // namespace

namespace {

// The runner of one of the ranks, or an error on all of them.
absl::StatusOr<std::unique_ptr<ModelRunner>> CreateRunner(Model* model,
                                                          const EngineOptions& options) {
  Collectives* const collectives = options.runner.collectives;
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, PolicyOf(options).status()));
  absl::StatusOr<std::unique_ptr<ModelRunner>> runner = ModelRunner::Create(model, options.runner);
  if (collectives == nullptr) return runner;
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, runner.status()));
  const ModelRunner& made = **runner;
  // What the runners have made of options that they have compared.
  REPRISE_RETURN_IF_ERROR(CheckSameOverRanks(
      collectives, {"num_blocks", "num_swap_blocks", "num_kv_groups", "samples_shards"},
      {made.num_blocks(), made.num_swap_blocks(), static_cast<int64_t>(made.kv_groups().size()),
       made.samples_shards() ? 1 : 0}));
  return runner;
}

}  // namespace

absl::Status Engine::Follow(Model* model, const EngineOptions& options) {
  Collectives* const collectives = options.runner.collectives;
  if (RanksOf(collectives).rank == 0) {
    return absl::InvalidArgumentError(
        "runner.collectives must be those of another rank than 0, whose engine is followed: got "
        "rank 0");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRunner> runner, CreateRunner(model, options));
  ModelSteps steps(runner.get());
  return FollowSteps(steps, *collectives);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Model* model, const EngineOptions& options) {
  Collectives* const collectives = options.runner.collectives;
  if (RanksOf(collectives).rank != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("runner.collectives must be those of rank 0; other ranks call Follow(): got "
                     "rank ",
                     collectives->ranks().rank));
  }
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, CreateRunner(model, options));
  REPRISE_ASSIGN_OR_RETURN(const SpeculationPolicy speculation, PolicyOf(options));
  auto steps = std::make_unique<ModelSteps>(runner.get());
  std::unique_ptr<RankedSteps> ranked;
  if (RanksOf(collectives).world > 1) {
    ranked = std::make_unique<RankedSteps>(steps.get(), collectives);
  }
  StepRunner* const all_steps =
      ranked != nullptr ? static_cast<StepRunner*>(ranked.get()) : steps.get();
  absl::StatusOr<std::unique_ptr<EngineCore>> core = EngineCore::Create(
      all_steps,
      {.scheduler = {.max_num_seqs = runner->max_num_seqs(),
                     .max_num_tokens = runner->max_num_tokens(),
                     .prefill_chunk = options.prefill_chunk,
                     .max_prefill_tokens_while_decoding = options.max_prefill_tokens_while_decoding,
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
                     .graph_levels =
                         GraphLevelsOf(options.runner.speculation, runner->graph_num_drafts()),
                     .has_drafter =
                         options.runner.speculation.proposer != SpeculationOptions::Proposer::kNone,
                     .drafter_keys = KeysOf(options.runner.speculation),
                     .prefix_reuse = options.prefix_reuse,
                     .partial_hits = options.partial_hits,
                     .prefix_seed = options.prefix_seed,
                     .num_prefix_events = options.num_prefix_events,
                     .num_swap_blocks = runner->num_swap_blocks(),
                     .bytes_per_block = runner->bytes_per_block(),
                     .preemption = options.preemption,
                     .preemption_costs = CostsOf(options, *runner),
                     .seed = options.seed},
       .clock = options.clock,
       .trace = options.runner.trace});
  if (!core.ok()) {
    // The others follow already.
    if (ranked != nullptr) collectives->Fail(core.status());
    return core.status();
  }
  return std::unique_ptr<Engine>(
      new Engine(std::move(runner), std::move(steps), std::move(ranked), *std::move(core)));
}

Engine::Engine(std::unique_ptr<ModelRunner> runner, std::unique_ptr<ModelSteps> steps,
               std::unique_ptr<RankedSteps> ranked, std::unique_ptr<EngineCore> core)
    : runner_(std::move(runner)),
      steps_(std::move(steps)),
      ranked_(std::move(ranked)),
      core_(std::move(core)) {}

Engine::~Engine() = default;

at::Tensor Engine::logits(const TokenEvent& event) const { return steps_->logits(event); }

}  // namespace reprise
