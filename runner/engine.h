// Text generation over a model: requests in, tokens out, many sequences at once.
//
//   REPRISE_ASSIGN_OR_RETURN(auto engine, Engine::Create(&model, {.runner = {.max_num_seqs = 8}}));
//   REPRISE_ASSIGN_OR_RETURN(SequenceId id, engine->Add({.prompt = {1, 2, 3}}));
//   std::vector<TokenEvent> events;
//   while (engine->has_work()) {
//     events.clear();
//     REPRISE_RETURN_IF_ERROR(engine->Step(events));
//     for (const TokenEvent& e : events) { ... e.sequence has got e.token ... }
//   }
//
// Joins a Scheduler (who takes part) and a ModelRunner (what is computed). Requests may be added at
// any time between steps; a sequence that ends makes room for one that waits.
//
// Thread safety: none; one owner. The model must outlive the engine.

#ifndef RUNNER_ENGINE_H_
#define RUNNER_ENGINE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/prefix_cache.h"
#include "cache/prefix_match.h"
#include "runner/model.h"
#include "runner/model_runner.h"
#include "runner/request.h"
#include "runner/scheduler.h"

namespace reprise {

struct EngineOptions {
  ModelRunnerOptions runner;
  // the most prompt tokens of one sequence in a step; 0: runner.max_num_tokens
  int prefill_chunk = 0;
  // kOn: a prompt begins behind what earlier sequences have computed of it.
  PrefixReuse prefix_reuse = PrefixReuse::kOn;
  PartialHits partial_hits = PartialHits::kNone;  // of the scheduler
};

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Model* model, const EngineOptions& options);

  // Queues a request. Errors: those of Scheduler::Add(), and InvalidArgument for token ids outside
  // the vocabulary.
  absl::StatusOr<SequenceId> Add(Request request);

  bool has_work() const { return scheduler_->has_work(); }

  // Launches the next step and, once as many steps are in flight as the runner allows or nothing
  // can be launched, takes the tokens of the oldest. Appends what sequences got. After an error the
  // engine is of no further use.
  absl::Status Step(std::vector<TokenEvent>& events);

  const ModelRunner& runner() const { return *runner_; }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  Engine(std::unique_ptr<ModelRunner> runner, std::unique_ptr<Scheduler> scheduler);

  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<StepTicket> in_flight_;  // oldest first
};

}  // namespace reprise

#endif  // RUNNER_ENGINE_H_
