// Options, schedulers and requests for tests of the scheduler.

#ifndef REPRISE_ENGINE_TESTING_MAKE_SCHEDULER_H_
#define REPRISE_ENGINE_TESTING_MAKE_SCHEDULER_H_

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/engine/request.h"
#include "reprise/engine/scheduler.h"

namespace reprise {

// Four sequences of up to 100 tokens, with up to `num_drafts` drafts per row.
inline SchedulerOptions OptionsWithDrafts(int num_drafts) {
  return {.shape = {.max_num_seqs = 4,
                    .max_num_tokens = 64,
                    .max_seq_len = 100,
                    .num_blocks = 200,
                    .block_size = 4},
          .policy = {.speculation = SpeculationPolicy{.num_drafts = num_drafts}}};
}

// REQUIRES: the options are valid.
inline std::unique_ptr<Scheduler> Make(const SchedulerOptions& options) {
  auto scheduler = Scheduler::Create(options);
  EXPECT_TRUE(scheduler.ok()) << scheduler.status();
  return *std::move(scheduler);
}

// REQUIRES: the scheduler accepts the request.
inline SequenceId Add(Scheduler& scheduler, Request request) {
  const auto id = scheduler.Add(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status();
  return *id;
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_MAKE_SCHEDULER_H_
