// The example of the README, compiled and run by a test. The test compares the code between the
// markers with the README's text.

#ifndef TESTS_README_GENERATE_H_
#define TESTS_README_GENERATE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/base/status_macros.h"

// [readme begin]
#include "reprise/engine/create_engine.h"

// Greedy text of any model that implements reprise::Model.
absl::StatusOr<std::vector<int32_t>> Generate(reprise::Model& model, std::vector<int32_t> prompt) {
  REPRISE_ASSIGN_OR_RETURN(auto engine, reprise::CreateEngine(&model, {}));
  REPRISE_RETURN_IF_ERROR(engine->Add({.prompt = std::move(prompt)}).status());
  std::vector<int32_t> tokens;
  for (std::vector<reprise::TokenEvent> events; engine->has_work(); events.clear()) {
    REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const reprise::TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      tokens.push_back(*event.token);
    }
  }
  return tokens;
}
// [readme end]

#endif  // TESTS_README_GENERATE_H_
