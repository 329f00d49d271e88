// Waits for input of a user, who may take any time, and calls something from time to time
// meanwhile.
//
//   InputWait wait(STDIN_FILENO, interrupt, {.call = [&] { return engine->Idle(); }});
//   if (wait.Next() == InputWait::Event::kInput) read(STDIN_FILENO, ...);
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_CHAT_INPUT_WAIT_H_
#define EXAMPLES_DECODE_CHAT_INPUT_WAIT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "examples/decode/signal_event.h"

namespace reprise {

// The function that is called while there is no input, such as Engine::Idle(). Empty: nothing.
struct IdleCall {
  std::function<absl::Status()> call = {};
  absl::Duration interval = absl::Seconds(5);
};

class InputWait {
 public:
  enum class Event : int8_t {
    kInput,        // there is something to read, or the end
    kInterrupted,  // by the signal, which is taken
    kFailed,       // the descriptor cannot be waited for, or the call has failed: see status()
  };

  // The descriptor stays the caller's. Both must outlive the object.
  InputWait(int descriptor, SignalEvent& interrupt, IdleCall idle);

  // The call is made on this thread, each time that `interval` has passed since the last one, also
  // where input comes more often than that. After a call that failed, all further waits fail.
  Event Next();

  // OK, or what the call has returned.
  const absl::Status& status() const { return status_; }

 private:
  // Makes the call if it is due.
  void CallIfDue();

  const int descriptor_;
  SignalEvent& interrupt_;
  const IdleCall idle_;
  absl::Time due_;
  absl::Status status_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_INPUT_WAIT_H_
