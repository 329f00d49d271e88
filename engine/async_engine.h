// An engine on a thread of its own: requests and cancels from any thread, tokens by callbacks.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(&model, options));
//   AsyncEngine async(std::move(engine));
//   REPRISE_ASSIGN_OR_RETURN(SequenceId id, async.Add({.prompt = {1, 2, 3}}, [](const TokenEvent& e) {
//     if (e.token.has_value()) Send(*e.token);
//     if (e.finish != FinishReason::kNone) Close(e.finish, e.error);
//   }));
//   async.Cancel(id);
//   REPRISE_RETURN_IF_ERROR(async.Drain());     // all requests have ended
//   REPRISE_RETURN_IF_ERROR(async.Shutdown());  // or: end them now
//
// States:
//
//   state     Add()         leaves by
//   open      accepts       Drain() -> draining; Shutdown(), the destructor -> stopped
//   draining  Unavailable   Shutdown(), the destructor -> stopped
//   stopped   Unavailable
//
// Listeners. A request's listener is called on the engine's thread, one event after the other, the
// last with a finish for each of the request's sequences; then it is destroyed, on that thread. The
// engine waits for it meanwhile: hand slow work to another thread. It may call Add() and Cancel(),
// and must not throw. A request that the engine refuses gets one event for all its sequences,
// kRefused, with the reason in TokenEvent::error. TokenEvent::sequence is the id that Add()
// returned, not the inner engine's.
//
// Thread safety: all methods from any thread, except that Drain() and Shutdown() are refused on the
// engine's thread. The destructor: when no other call is under way.

#ifndef ENGINE_ASYNC_ENGINE_H_
#define ENGINE_ASYNC_ENGINE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "engine/engine_metrics.h"
#include "engine/request.h"
#include "engine/step_engine.h"

namespace reprise {

class AsyncEngine {
 public:
  using Listener = std::function<void(const TokenEvent&)>;

  // Starts the thread. From now on the engine is used by that thread only. `idle_interval`: how often
  // an engine without work is told so (StepEngine::Idle()); well below the timeout of ranks. At most a
  // day: so it is for absl::InfiniteDuration().
  explicit AsyncEngine(std::unique_ptr<StepEngine> engine,
                       absl::Duration idle_interval = absl::Seconds(5));
  ~AsyncEngine();  // Shutdown()

  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // Hands the request over and returns at once: errors of the engine go to the listener. The
  // request's StopMatchers are made and called on the engine's thread.
  // Errors: Unavailable when draining or stopped; the listener is never called then.
  absl::StatusOr<SequenceId> Add(Request request, Listener listener);

  // Ends the request's unfinished sequences with kCancelled. No effect if they have ended: the
  // tokens on their way when it is called may still come.
  void Cancel(SequenceId id);

  // Nothing that has been computed so far is found as a prefix by requests that are added after this
  // call (StepEngine::ForgetPrefixes()).
  void ForgetPrefixes();

  // Refuses new requests, and returns when all others have ended and their listeners are gone.
  // Errors: FailedPrecondition if called by a listener.
  absl::Status Drain();

  // Refuses new requests, ends all others with kCancelled, waits for the steps in flight and for
  // the thread. Any number of times. Errors: FailedPrecondition if called by a listener.
  absl::Status Shutdown();

  // Of the engine, as they were after its last step.
  EngineMetrics metrics() const;

  // OK, or why the engine can run no more steps. Requests are refused from then on.
  absl::Status status() const;

 private:
  struct NewRequest {
    Request request;
    Listener listener;
  };
  struct Command {
    enum class Kind { kAdd, kCancel, kForgetPrefixes };

    Kind kind = Kind::kAdd;
    SequenceId id = {};                           // but for kForgetPrefixes
    std::unique_ptr<NewRequest> added = nullptr;  // of kAdd
  };
  struct Running {
    SequenceId id;  // as Add() returned it
    Listener listener;
    int num_unfinished = 0;
  };

  // ---- On the engine's thread.
  void Run();
  // Takes the commands, after waiting for some if the engine has nothing to do. False: stop.
  bool TakeCommands(std::vector<Command>& commands);
  void Obey(Command command);
  void Admit(SequenceId id, NewRequest added);
  void CancelOne(SequenceId id);
  void StepOnce();
  void Deliver();  // events_
  void Refuse(SequenceId id, NewRequest added, const absl::Status& why);
  void Forget();  // a request whose listener is gone
  void CancelAll();
  void Publish();

  const std::unique_ptr<StepEngine> engine_;  // the thread's
  const absl::Duration idle_interval_;
  absl::flat_hash_map<SequenceId, Running> running_;   // the thread's; by the engine's id
  absl::flat_hash_map<SequenceId, SequenceId> inner_;  // the thread's; id to the engine's
  std::vector<TokenEvent> events_;                     // the thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // commands_, is_stopping_
  std::condition_variable idle_;     // num_open_
  std::vector<Command> commands_;
  int64_t next_id_ = 0;
  int64_t num_open_ = 0;  // requests that were accepted and have not ended
  bool is_open_ = true;
  bool is_stopping_ = false;
  EngineMetrics metrics_;
  absl::Status status_;

  std::mutex join_mutex_;
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace reprise

#endif  // ENGINE_ASYNC_ENGINE_H_
