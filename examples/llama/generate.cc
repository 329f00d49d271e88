#include "examples/llama/generate.h"

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace reprise {

absl::Status Generate(Engine& engine, absl::Span<const Request> requests, TokenListener on_token) {
  CHECK(!engine.has_work());
  absl::flat_hash_map<SequenceId, int> request_of;
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::StatusOr<SequenceId> id = engine.Add(requests[i]);
    if (!id.ok() && requests.size() > 1) {
      return absl::Status(id.status().code(),
                          absl::StrCat("prompt ", i + 1, ": ", id.status().message()));
    }
    REPRISE_RETURN_IF_ERROR(id.status());
    request_of.emplace(*id, static_cast<int>(i));
  }
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(on_token(request_of.at(event.sequence), event));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
