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
// Connects a Scheduler (which sequences take part) and a ModelRunner (the computation). Requests
// may be added at any time between steps; a sequence that ends makes room for one that waits.
//
// Thread safety: none; one owner. The model must outlive the engine.

#ifndef ENGINE_ENGINE_H_
#define ENGINE_ENGINE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/blocks/prefix_cache.h"
#include "cache/prefix/prefix_match.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "runner/model.h"
#include "runner/model_runner.h"

namespace reprise {

struct EngineOptions {
  ModelRunnerOptions runner;
  // the most prompt tokens of one sequence in a step; 0: runner.max_num_tokens
  int prefill_chunk = 0;
  // kOn: a prompt begins after its prefix that earlier sequences have computed.
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
  // can be launched, takes the tokens of the oldest. Appends the new tokens to the events. After an
  // error the engine is unusable.
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

#endif  // ENGINE_ENGINE_H_
