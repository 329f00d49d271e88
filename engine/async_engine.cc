#include "reprise/engine/async_engine.h"

#include <algorithm>
#include <cstddef>
#include <future>
#include <utility>

#include "glog/logging.h"
#include "reprise/base/catch_all.h"

namespace reprise {
namespace {

// A longer wait could overflow the clock of std::condition_variable.
constexpr absl::Duration kLongestIdleInterval = absl::Hours(24);

}  // namespace

AsyncEngine::AsyncEngine(std::unique_ptr<Engine> engine, absl::Duration idle_interval)
    : engine_(std::move(engine)), idle_interval_(std::min(idle_interval, kLongestIdleInterval)) {
  metrics_ = engine_->metrics();
  thread_ = std::thread([this] { Run(); });
  thread_id_ = thread_.get_id();
}

AsyncEngine::~AsyncEngine() {
  const absl::Status stopped = Shutdown();
  CHECK(stopped.ok()) << stopped;
}

// ---- From any thread.

absl::StatusOr<SequenceId> AsyncEngine::Add(Request request, Listener listener) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_open_) {
    return absl::UnavailableError("the engine takes no more requests: it is drained or shut down");
  }
  const SequenceId id(next_id_++);
  ++num_open_;
  auto added = std::make_unique<NewRequest>(
      NewRequest{.request = std::move(request), .listener = std::move(listener)});
  commands_.push_back({.id = id, .added = std::move(added)});
  changed_.notify_one();
  return id;
}

void AsyncEngine::Cancel(SequenceId id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_stopping_) return;  // Shutdown() cancels all requests
  commands_.push_back({.kind = Command::Kind::kCancel, .id = id});
  changed_.notify_one();
}

void AsyncEngine::ForgetPrefixes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  commands_.push_back({.kind = Command::Kind::kForgetPrefixes});
  changed_.notify_one();
}

void AsyncEngine::OnThread(absl::FunctionRef<void()> work) {
  if (std::this_thread::get_id() == thread_id_) return work();
  std::promise<void> done;
  std::unique_lock<std::mutex> lock(mutex_);
  if (has_ended_) {
    lock.unlock();
    const std::lock_guard<std::recursive_mutex> ended(ended_mutex_);
    return work();
  }
  const auto work_and_tell = [&] {
    work();
    done.set_value();
  };
  commands_.push_back({.kind = Command::Kind::kRun, .work = work_and_tell});
  changed_.notify_one();
  lock.unlock();
  done.get_future().wait();
}

OwnedPrefixEvents AsyncEngine::TakePrefixEvents() {
  OwnedPrefixEvents owned;
  OnThread([&] {
    const PrefixEvents taken = engine_->TakePrefixEvents();
    owned = {.events = {taken.events.begin(), taken.events.end()}, .num_lost = taken.num_lost};
  });
  return owned;
}

absl::Status AsyncEngine::Inspect(absl::FunctionRef<void(const Engine&)> visit) {
  absl::Status status;
  OnThread([&] { status = CallUser("the visitor", [&] { visit(*engine_); }); });
  return status;
}

absl::Status AsyncEngine::Drain() {
  if (std::this_thread::get_id() == thread_id_) {
    return absl::FailedPreconditionError("Drain() waits for the listener that calls it");
  }
  std::unique_lock<std::mutex> lock(mutex_);
  is_open_ = false;
  idle_.wait(lock, [this] { return num_open_ == 0; });
  return absl::OkStatus();
}

absl::Status AsyncEngine::Shutdown() {
  if (std::this_thread::get_id() == thread_id_) {
    return absl::FailedPreconditionError("Shutdown() waits for the listener that calls it");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = false;
    is_stopping_ = true;
    changed_.notify_one();
  }
  const std::lock_guard<std::mutex> lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  return absl::OkStatus();
}

EngineMetrics AsyncEngine::metrics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return metrics_;
}

absl::Status AsyncEngine::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

// ---- On the engine's thread.

void AsyncEngine::Run() {
  std::vector<Command> commands;
  while (TakeCommands(commands)) {
    for (Command& command : commands) Obey(std::move(command));
    commands.clear();
    if (engine_->has_work()) StepOnce();
    Publish();
  }
  CancelAll();
  // Queued requests are added first, so that the cancellation has an event for each of their
  // sequences.
  for (Command& command : commands) {
    const bool is_request = command.kind == Command::Kind::kAdd;
    const SequenceId id = command.id;
    Obey(std::move(command));
    if (is_request) CancelOne(id);
  }
  while (engine_->has_work()) StepOnce();  // steps in flight
  Publish();
  while (!HasEnded(commands)) {
    for (Command& command : commands) Obey(std::move(command));  // no requests since the stop
  }
}

bool AsyncEngine::HasEnded(std::vector<Command>& commands) {
  const std::lock_guard<std::mutex> lock(mutex_);
  commands.clear();
  commands.swap(commands_);
  has_ended_ = commands.empty();
  return has_ended_;
}

bool AsyncEngine::TakeCommands(std::vector<Command>& commands) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_command = [this] { return is_stopping_ || !commands_.empty(); };
  while (!engine_->has_work() &&
         !changed_.wait_for(lock, absl::ToChronoNanoseconds(idle_interval_), has_command)) {
    lock.unlock();
    // Only the first error is logged. If the runner can run no more steps, later requests are
    // refused.
    const absl::Status idle = engine_->Idle();
    if (!idle.ok()) {
      LOG_FIRST_N(ERROR, 1) << idle;
    }
    lock.lock();
  }
  commands.swap(commands_);
  return !is_stopping_;
}

void AsyncEngine::Obey(Command command) {
  switch (command.kind) {
    case Command::Kind::kAdd:
      return Admit(command.id, *std::move(command.added));
    case Command::Kind::kCancel:
      return CancelOne(command.id);
    case Command::Kind::kForgetPrefixes:
      return engine_->ForgetPrefixes();
    case Command::Kind::kRun:
      return command.work();
  }
}

void AsyncEngine::Admit(SequenceId id, NewRequest added) {
  const int num_sequences = added.request.num_sequences;
  const absl::StatusOr<SequenceId> inner = engine_->Add(std::move(added.request));
  if (!inner.ok()) {
    Refuse(id, std::move(added), inner.status());
    return;
  }
  inner_.emplace(id, *inner);
  running_.emplace(
      *inner,
      Running{.id = id, .listener = std::move(added.listener), .num_unfinished = num_sequences});
}

void AsyncEngine::CancelOne(SequenceId id) {
  const auto it = inner_.find(id);
  if (it == inner_.end()) return;  // the request has ended
  const absl::Status cancelled = engine_->Cancel(it->second, events_);
  LOG_IF(WARNING, !cancelled.ok()) << cancelled;
  Deliver();
}

void AsyncEngine::StepOnce() {
  const absl::Status status = engine_->Step(events_);
  if (!status.ok()) {  // status_ changes before the listeners get the events
    const std::lock_guard<std::mutex> lock(mutex_);
    LOG_IF(ERROR, status_.ok()) << "the engine can run no more steps: " << status;
    status_.Update(status);
  }
  Deliver();
}

void AsyncEngine::Deliver() {
  for (size_t i = 0; i < events_.size(); ++i) {
    TokenEvent event = std::move(events_[i]);
    const SequenceId inner = event.sequence;
    const auto it = running_.find(inner);
    CHECK(it != running_.end()) << "event of sequence " << inner << ", which has ended";
    Running& running = it->second;
    event.sequence = running.id;
    const bool returned = Tell(running.listener, event);
    if (event.finish != FinishReason::kNone && --running.num_unfinished == 0) {
      inner_.erase(running.id);
      running_.erase(it);
      Forget();
    } else if (!returned) {
      running.listener = nullptr;
      // Appends to events_. NotFound: the request's last events are in events_ already.
      engine_->Cancel(inner, events_).IgnoreError();
    }
  }
  events_.clear();
}

bool AsyncEngine::Tell(const Listener& listener, const TokenEvent& event) {
  if (!listener) return true;
  const absl::Status status = CallUser("the listener", [&] { listener(event); });
  LOG_IF(ERROR, !status.ok()) << "request " << event.sequence << ": " << status;
  return status.ok();
}

void AsyncEngine::Refuse(SequenceId id, NewRequest added, const absl::Status& why) {
  Tell(added.listener, {.sequence = id, .finish = FinishReason::kRefused, .error = why});
  added.listener = nullptr;  // before Forget(), after which Drain() may return
  Forget();
}

void AsyncEngine::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--num_open_ == 0) idle_.notify_all();
}

void AsyncEngine::CancelAll() {
  for (const auto& [id, running] : running_) {
    const absl::Status cancelled = engine_->Cancel(id, events_);
    LOG_IF(WARNING, !cancelled.ok()) << cancelled;
  }
  Deliver();
}

void AsyncEngine::Publish() {
  const EngineMetrics metrics = engine_->metrics();
  const std::lock_guard<std::mutex> lock(mutex_);
  metrics_ = metrics;
}

}  // namespace reprise
