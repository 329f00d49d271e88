// Text generation over a model: requests in, tokens out, many sequences at once.
//
//   REPRISE_ASSIGN_OR_RETURN(auto engine, Engine::Create(&model, {.runner = {.max_num_seqs = 8}}));
//   REPRISE_ASSIGN_OR_RETURN(SequenceId id, engine->Add({.prompt = {1, 2, 3}}));
//   std::vector<TokenEvent> events;
//   while (engine->has_work()) {
//     events.clear();
//     REPRISE_RETURN_IF_ERROR(engine->Step(events));
//     for (const TokenEvent& e : events) {
//       if (e.token.has_value()) ...   // e.sequence has got *e.token
//       if (e.finish == FinishReason::kError) ...   // it has ended: e.error says why
//     }
//   }
//
// Connects a Scheduler (which sequences take part) and a ModelRunner (the computation). Requests
// may be added and cancelled at any time between steps; a sequence that ends makes room for one
// that waits. What a failure ends is said in engine/engine_core.h. To add and cancel from other
// threads, put an AsyncEngine around it (engine/async_engine.h).
//
// Thread safety: none; one owner. The model must outlive the engine.

#ifndef ENGINE_ENGINE_H_
#define ENGINE_ENGINE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/blocks/prefix_cache.h"
#include "cache/prefix/prefix_events.h"
#include "cache/prefix/prefix_hash.h"
#include "cache/prefix/prefix_match.h"
#include "engine/engine_core.h"
#include "engine/engine_metrics.h"
#include "engine/preemption_rule.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/speculation_policy.h"
#include "engine/step_engine.h"
#include "runner/model.h"
#include "runner/model_runner.h"

namespace reprise {

class ModelSteps;
class RankedSteps;

struct EngineOptions {
  ModelRunnerOptions runner;
  // the most prompt tokens of one sequence in a step; 0: runner.max_num_tokens
  int prefill_chunk = 0;
  // kOn: a prompt begins after its prefix that earlier sequences have computed.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  // These as in SchedulerOptions.
  PartialHits partial_hits = PartialHits::kNone;
  std::optional<PrefixSeed> prefix_seed = std::nullopt;
  int64_t num_prefix_events = 0;
  // Drafts of decodes, where runner.speculation proposes them. nullopt: of the captured numbers the one
  // that brings the most tokens a second by measured times (SpeculationPolicy::measures_steps; with
  // DraftAcceptance::kRejection as many as that allows, in all steps).
  std::optional<SpeculationPolicy> speculation = std::nullopt;
  // These, too, as in SchedulerOptions.
  int max_prefill_tokens_while_decoding = 0;
  int max_waiting = 0;
  // How a sequence gives up its blocks. Swaps need runner.num_swap_blocks or swap_memory_bytes.
  PreemptionMode preemption = PreemptionMode::kAuto;
  // nullopt: a swap as H200PreemptionCosts() has it, and computing as the runner has measured it
  // for this model (ModelRunner::step_times()).
  std::optional<PreemptionCosts> preemption_costs = std::nullopt;
  std::optional<uint64_t> seed = std::nullopt;
  // What deadlines are compared with and latencies are measured by.
  std::function<absl::Time()> clock = absl::Now;
};

// For Request::embeddings: `rows` [tokens, dim] of the model's dtype, on the host or on the model's
// GPU, whose memory it keeps. What another stream writes there must be written before Add().
// Errors: InvalidArgument for a tensor of another rank, without elements, of an unknown dtype, or
// whose rows are not contiguous.
absl::StatusOr<RequestEmbeddings> RequestEmbeddingsOf(int first_token, const at::Tensor& rows,
                                                      std::string content = {});

class Engine final : public StepEngine {
 public:
  // Errors: those of ModelRunner::Create() and Scheduler::Create(); InvalidArgument for more drafts
  // than runner.speculation proposes.
  // A model that is divided over ranks (ModelRunnerOptions::collectives) has its engine on rank 0;
  // the others call Follow() with the same options. Errors: also why another rank's runner could
  // not be made, and FailedPrecondition if the ranks' options differ.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Model* model, const EngineOptions& options);

  // On the other ranks: runs the steps of rank 0's engine, until that is destroyed. Errors: those
  // of Create() and FollowSteps().
  static absl::Status Follow(Model* model, const EngineOptions& options);

  ~Engine() override;

  // Queues a request. Errors: those of Scheduler::Add(); InvalidArgument for token ids outside the
  // vocabulary, for embeddings that the model does not take, and for what
  // ModelRunnerOptions::logits does not provide for; Unavailable, with the cause, after a failure
  // of the device.
  absl::StatusOr<SequenceId> Add(Request request) override {
    return core_->Add(std::move(request));
  }

  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events) override {
    return core_->Cancel(id, events);
  }

  bool has_work() const override { return core_->has_work(); }

  // Launches the next step and, once as many steps are in flight as the runner allows or nothing
  // can be launched, takes the tokens of the oldest. Appends what has happened to the events.
  // Errors: why the runner can run no more steps; all sequences have ended then. A failure that
  // ends some sequences only is in their events.
  absl::Status Step(std::vector<TokenEvent>& events) override { return core_->Step(events); }

  // The logits [vocab_size] from which the token of an event of the last Step() was chosen, until
  // the next Step(). Undefined for an event without a token, and if the runner does not keep them
  // (StepResult::logits).
  at::Tensor logits(const TokenEvent& event) const;

  absl::Status Idle() override { return core_->Idle(); }

  // After the model's weights have changed, between two calls of Step(): nothing that was computed
  // with the old ones is found as a prefix from now on. Running sequences go on from what they have.
  void ForgetPrefixes() override { core_->ForgetPrefixes(); }

  // Which prefixes can be found, and which no longer can, since the last call: for a router that
  // sends requests to the process that has their prefix (cache/prefix/prefix_events.h). At most
  // EngineOptions::num_prefix_events. Valid until the next call.
  PrefixEvents TakePrefixEvents() { return core_->TakePrefixEvents(); }

  EngineMetrics metrics() const override { return core_->metrics(); }
  const ModelRunner& runner() const { return *runner_; }
  const Scheduler& scheduler() const { return core_->scheduler(); }

 private:
  Engine(std::unique_ptr<ModelRunner> runner, std::unique_ptr<ModelSteps> steps,
         std::unique_ptr<RankedSteps> ranked, std::unique_ptr<EngineCore> core);

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<ModelSteps> steps_;    // of the runner
  std::unique_ptr<RankedSteps> ranked_;  // around them; null with one rank
  std::unique_ptr<EngineCore> core_;
};

}  // namespace reprise

#endif  // ENGINE_ENGINE_H_
