// An engine that runs on its own thread. Requests and cancellations may come from any thread;
// tokens are delivered by callbacks.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateEngine(&model, options));
//   AsyncEngine async(std::move(engine));
//   REPRISE_ASSIGN_OR_RETURN(
//       SequenceId id, async.Add({.prompt = {1, 2, 3}}, [](const TokenEvent& e) {
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
// Listeners. A request's listener is called on the engine's thread, with one event at a time. The
// last event of each of the request's sequences has a FinishReason; after the last of these events,
// the listener is destroyed on the engine's thread. The engine waits while a listener runs: hand
// slow work to another thread. A listener may call Add() and Cancel(). A listener that throws is
// destroyed at once and gets no further event, its request is cancelled, and the exception is
// logged. A request that the engine refuses gets one event for all its sequences, kRefused, with
// the reason in TokenEvent::error. TokenEvent::sequence is the id that Add() returned.
//
// Thread safety: thread-safe, except that Drain() and Shutdown() fail on the engine's thread, and
// that no call may be active when the destructor is called.

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
  int64_t num_lost = 0;                  // later events that were dropped
};

class AsyncEngine {
 public:
  using Listener = std::function<void(const TokenEvent&)>;

  // Starts the thread; from then on, only this thread uses the engine. `idle_interval`: the time
  // between two calls of Engine::Idle() while there is no work. It must be well below the timeout
  // of the ranks' Collectives. Limited to one day, also for absl::InfiniteDuration().
  explicit AsyncEngine(std::unique_ptr<Engine> engine,
                       absl::Duration idle_interval = absl::Seconds(5));
  ~AsyncEngine();  // calls Shutdown()

  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // Queues the request for the engine's thread and returns without waiting. Errors of the engine go
  // to the listener. The request's StopMatchers are made and called on the engine's thread.
  // Errors: Unavailable if draining or stopped; the listener is then never called.
  absl::StatusOr<SequenceId> Add(Request request, Listener listener);

  // Ends the request's unfinished sequences with kCancelled. Has no effect on sequences that have
  // ended. Does not wait: events of the Engine::Step() that is running may still be delivered.
  void Cancel(SequenceId id);

  // Requests added after this call do not reuse any prefix computed before it
  // (Engine::ForgetPrefixes()).
  void ForgetPrefixes();

  // Returns the events of Engine::TakePrefixEvents() since the last call, also after Shutdown(). If
  // several threads call it, each event is returned once. Waits until the engine's thread has
  // finished its step and the listeners, unless a listener is the caller. Allocates.
  OwnedPrefixEvents TakePrefixEvents();

  // Calls `visit` with the engine on the engine's thread, between two steps, and returns when
  // `visit` has returned. For everything that an Engine reports, such as its graph report, and for
  // the logits of an event (LogitsOf()), which a listener can read while it handles the event.
  // Calls by a listener, and calls after Shutdown(), run `visit` on the calling thread. Errors:
  // Internal if `visit` throws.
  absl::Status Inspect(absl::FunctionRef<void(const Engine& engine)> visit);

  // Refuses new requests. Returns when all earlier requests have ended and their listeners have
  // been destroyed.
  // Errors: FailedPrecondition if called by a listener.
  absl::Status Drain();

  // Refuses new requests, ends all sequences of earlier requests with kCancelled, and waits for the
  // steps in flight and for the thread. A request that is still queued ends in the same way, or
  // with kRefused if the engine refuses it. May be called any number of times. Errors:
  // FailedPrecondition if called by a listener.
  absl::Status Shutdown();

  // The engine's metrics as of its last step.
  EngineMetrics metrics() const;

  // OK, or the error of the first Engine::Step() that failed: the engine can run no more steps and
  // refuses requests. Does not include a failure that only Engine::Idle() or Engine::Add() has
  // found.
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
    SequenceId id;  // as returned by Add()
    Listener listener;
    int num_unfinished = 0;
  };

  // Runs `work` on the engine's thread, between two steps, and waits until it has returned. Runs it
  // on the calling thread if that is the engine's thread, or if the engine's thread has ended.
  void OnThread(absl::FunctionRef<void()> work);

  // ---- On the engine's thread.
  void Run();
  // Takes all queued commands; waits for one if the engine has no work. Returns false if the thread
  // must stop.
  bool TakeCommands(std::vector<Command>& commands);
  // Takes the commands that were queued after the stop. Returns true if there are none; from then
  // on, OnThread() runs work on the caller's thread.
  bool HasEnded(std::vector<Command>& commands);
  void Obey(Command command);
  void Admit(SequenceId id, NewRequest added);
  void CancelOne(SequenceId id);
  void StepOnce();
  void Deliver();  // events_
  // Calls the listener, if there is one. Returns false if it threw.
  static bool Tell(const Listener& listener, const TokenEvent& event);
  void Refuse(SequenceId id, NewRequest added, const absl::Status& why);
  void Forget();  // counts a request as ended, after its listener was destroyed
  void CancelAll();
  void Publish();

  // Used by the engine's thread; guarded by ended_mutex_ once has_ended_ is set.
  const std::unique_ptr<Engine> engine_;
  const absl::Duration idle_interval_;
  absl::flat_hash_map<SequenceId, Running> running_;   // thread only; by the id in engine_
  absl::flat_hash_map<SequenceId, SequenceId> inner_;  // thread only; from our id to engine_'s
  std::vector<TokenEvent> events_;                     // thread only; not delivered yet

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // commands_ or is_stopping_ changed
  std::condition_variable idle_;     // num_open_ is 0
  std::vector<Command> commands_;
  int64_t next_id_ = 0;
  int64_t num_open_ = 0;  // requests that were accepted and have not ended
  bool is_open_ = true;
  bool is_stopping_ = false;
  bool has_ended_ = false;  // the thread no longer uses engine_ or runs commands
  EngineMetrics metrics_;
  absl::Status status_;

  std::recursive_mutex ended_mutex_;  // recursive: a visitor may call Inspect()
  std::mutex join_mutex_;
  std::thread thread_;
  std::thread::id thread_id_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_ASYNC_ENGINE_H_
