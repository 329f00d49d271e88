// An engine on a thread of its own: requests and cancels from any thread, tokens by callbacks.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateEngine(&model, options));
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
// engine waits for it meanwhile: hand slow work to another thread. It may call Add() and Cancel(). A
// listener that throws is destroyed at once and gets no further event, and its request is cancelled;
// the exception is logged. A request that the engine refuses gets one event for all its sequences,
// kRefused, with the reason in TokenEvent::error. TokenEvent::sequence is the id that Add()
// returned, not the inner engine's.
//
// Thread safety: all methods from any thread, except that Drain() and Shutdown() are refused on the
// engine's thread. The destructor: when no other call is under way.

#ifndef REPRISE_ENGINE_ASYNC_ENGINE_H_
#define REPRISE_ENGINE_ASYNC_ENGINE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/engine_metrics.h"
#include "reprise/engine/request.h"

namespace reprise {

// A copy of PrefixEvents that owns its memory.
struct OwnedPrefixEvents {
  std::vector<PrefixEvent> events = {};  // oldest first
  int64_t num_lost = 0;                  // events after those
};

class AsyncEngine {
 public:
  using Listener = std::function<void(const TokenEvent&)>;

  // Starts the thread. From now on the engine is used by that thread only. `idle_interval`: the
  // time between two calls of Engine::Idle() while there is no work; it must be well below the
  // timeout of ranks. At most a
  // day: so it is for absl::InfiniteDuration().
  explicit AsyncEngine(std::unique_ptr<Engine> engine,
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
  // call (Engine::ForgetPrefixes()).
  void ForgetPrefixes();

  // Returns the events of Engine::TakePrefixEvents() since the last call, also after Shutdown(). Each
  // event goes to one caller. Waits until the engine's thread has finished its step and the
  // listeners, unless a listener is the caller. Allocates.
  OwnedPrefixEvents TakePrefixEvents();

  // Calls `visit` with the engine between two of its steps, on the engine's thread, and returns when
  // `visit` has returned: for all that an Engine tells, such as its graph report, and for the logits
  // of an event (LogitsOf()), which a listener can read while it has the event. A listener that calls
  // it, and calls after Shutdown(), visit on their own thread. Errors: Internal if `visit` throws.
  absl::Status Inspect(absl::FunctionRef<void(const Engine& engine)> visit);

  // Refuses new requests, and returns when all others have ended and their listeners are gone.
  // Errors: FailedPrecondition if called by a listener.
  absl::Status Drain();

  // Refuses new requests, ends all sequences of the others with kCancelled, waits for the steps in flight
  // and for the thread. A request that the engine has not taken yet ends in the same way, or with
  // kRefused if the engine refuses it. Any number of times. Errors: FailedPrecondition if called by a
  // listener.
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
    enum class Kind { kAdd, kCancel, kForgetPrefixes, kRun };

    Kind kind = Kind::kAdd;
    SequenceId id = {};                           // kAdd, kCancel
    std::unique_ptr<NewRequest> added = nullptr;  // kAdd
    std::function<void()> work = nullptr;         // kRun
  };
  struct Running {
    SequenceId id;  // as Add() returned it
    Listener listener;
    int num_unfinished = 0;
  };

  // Runs `work` on the engine's thread, between two steps, and returns when it has been run. On the
  // calling thread if that is the engine's, or the engine's has ended.
  void OnThread(absl::FunctionRef<void()> work);

  // ---- On the engine's thread.
  void Run();
  // Takes the commands, after waiting for some if the engine has nothing to do. False: stop.
  bool TakeCommands(std::vector<Command>& commands);
  // Takes the commands that were sent after the stop. Returns true if no command was sent and none
  // can follow.
  bool HasEnded(std::vector<Command>& commands);
  void Obey(Command command);
  void Admit(SequenceId id, NewRequest added);
  void CancelOne(SequenceId id);
  void StepOnce();
  void Deliver();  // events_
  // Calls the listener, if there is one. False: it threw.
  static bool Tell(const Listener& listener, const TokenEvent& event);
  void Refuse(SequenceId id, NewRequest added, const absl::Status& why);
  void Forget();  // a request whose listener is gone
  void CancelAll();
  void Publish();

  // Used by the engine's thread; guarded by ended_mutex_ once has_ended_ is set.
  const std::unique_ptr<Engine> engine_;
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
  bool has_ended_ = false;  // the thread uses the engine no more, and obeys no command
  EngineMetrics metrics_;
  absl::Status status_;

  std::recursive_mutex ended_mutex_;  // a visitor may inspect again
  std::mutex join_mutex_;
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_ASYNC_ENGINE_H_
