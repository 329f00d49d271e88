// For tests with several ranks: runs each rank in a process and collects its result.
//
//   RankReports reports(3, [](const RankPlace& place) { return Connect(place).status(); });
//   EXPECT_EQ(reports.of(1).code(), absl::StatusCode::kUnavailable);
//
// The test fails if the first rank that fails does so because its expectations fail, or because it
// takes longer than `limit`. A later failure does not fail the test.

#ifndef REPRISE_DISTRIBUTED_TESTING_RANK_REPORTS_H_
#define REPRISE_DISTRIBUTED_TESTING_RANK_REPORTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

class RankReports {
 public:
  // Runs `body` as ranks 0 to world - 1, and waits for all of them.
  RankReports(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
              absl::Duration limit = absl::Seconds(60));

  // The result of `body` on `rank`, or nullopt if it did not return.
  std::optional<absl::Status> of(int rank) const { return reports_[rank]; }
  // Whether all bodies returned OK.
  bool ok() const;
  // Time until the last rank returned. Ignores ranks that did not return.
  absl::Duration took() const { return took_; }
  // The results of all ranks, for messages.
  std::string text() const;
  // The result of RunRanks().
  const absl::Status& status() const { return status_; }

 private:
  std::vector<std::optional<absl::Status>> reports_;
  absl::Duration took_;
  absl::Status status_;
};

// Simulates a rank that hangs: sleeps until all other ranks have returned, then ends the process.
// Call it only in `body`.
[[noreturn]] void HangUntilOthersReturn();

// Returns a free TCP port of this machine.
int FreePort();

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_RANK_REPORTS_H_
