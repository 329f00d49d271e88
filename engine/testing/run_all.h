// Runs an engine until all its requests have ended.

#ifndef REPRISE_ENGINE_TESTING_RUN_ALL_H_
#define REPRISE_ENGINE_TESTING_RUN_ALL_H_

#include <cstdint>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"

namespace reprise {

// Returns the generated tokens by request, with -1 for an end without a token. Fails the test if a
// step or a sequence fails.
inline std::map<int64_t, std::vector<int32_t>> RunAll(Engine& engine) {
  std::map<int64_t, std::vector<int32_t>> texts;
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    const absl::Status status = engine.Step(events);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    for (const TokenEvent& event : events) {
      EXPECT_TRUE(event.error.ok()) << event.error;
      texts[event.sequence.value()].push_back(event.token.value_or(-1));
    }
    engine.scheduler().CheckInvariants();
  }
  return texts;
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_RUN_ALL_H_
