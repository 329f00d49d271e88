// A sequence as the Scheduler (runner/scheduler.h) keeps it; private to that.

#ifndef RUNNER_SCHEDULER_SEQUENCE_H_
#define RUNNER_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "runner/request.h"
#include "runner/scheduler.h"

namespace reprise {

// A sequence's tokens are counted in three ways, each at most the next but for forced tokens:
//   num_scheduled  tokens whose keys are cached, or will be by a batch in flight
//   num_known      prompt and generated tokens that the host has seen
//   num_known + num_in_flight  with those sampled by batches in flight
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

#endif  // RUNNER_SCHEDULER_SEQUENCE_H_
