// The Scheduler's state of a sequence; private to engine/scheduler.h.

#ifndef ENGINE_SCHEDULER_SEQUENCE_H_
#define ENGINE_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace reprise {

// A sequence's tokens are counted in three ways:
//   num_known      prompt and generated tokens that the host has seen
//   num_in_flight  further tokens, which batches in flight sample
//   num_scheduled  tokens whose keys are cached, or will be by a batch in flight
// Until the tokens known at admission are fed, num_in_flight = 0 and num_scheduled < prefill_end =
// num_known. From then on num_scheduled = num_known + num_in_flight - 1, for the last token has no
// key yet: with two batches or more in flight it exceeds num_known.
struct Scheduler::Sequence {
  SequenceId id;
  Request request;
  std::vector<int32_t> tokens;  // known ones, then forced ones not yet reached
  int num_known = 0;
  int num_scheduled = 0;
  int num_in_flight = 0;
  int prefill_end = 0;  // tokens known at admission: up to here they are fed by the host, in chunks
  uint32_t run = 0;     // counts admissions and ends
  int num_open_rows = 0;  // in batches in flight, of any run
  bool finished = false;
  std::optional<SlotId> slot;

  int num_prompt() const { return static_cast<int>(request.prompt.size()); }
  int num_generated() const { return num_known - num_prompt(); }
  bool forced() const { return !request.forced_tokens.empty(); }
  int max_generated() const {
    return forced() ? static_cast<int>(request.forced_tokens.size()) : request.max_new_tokens;
  }
};

}  // namespace reprise

#endif  // ENGINE_SCHEDULER_SEQUENCE_H_
