// Tests with several ranks: each rank is a process, and tells the test what it has seen.
//
//   RankReports reports(3, [](const RankPlace& place) { return Connect(place).status(); });
//   EXPECT_EQ(reports.of(1).code(), absl::StatusCode::kUnavailable);
//
// A rank whose expectations fail makes the test fail; so does one that takes longer than `limit`.

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
  // Runs `body` as ranks 0 to world - 1, and waits for all. Adds a failure to the test for each
  // rank whose expectations fail.
  RankReports(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
              absl::Duration limit = absl::Seconds(60));

  // What `body` returned there; nullopt if it did not return.
  std::optional<absl::Status> of(int rank) const { return reports_[rank]; }
  // Whether all bodies returned OK.
  bool ok() const;
  // How long it took until the last rank that returned had done so.
  absl::Duration took() const { return took_; }
  // All of them, for messages.
  std::string text() const;
  // What RunRanks() returned.
  const absl::Status& status() const { return status_; }

 private:
  std::vector<std::optional<absl::Status>> reports_;
  absl::Duration took_;
  absl::Status status_;
};

// Stands for a rank that hangs. Sleeps until all other ranks have returned, then ends the process. Call it in `body` only.
[[noreturn]] void HangUntilOthersReturn();

// A port of this machine that is free.
int FreePort();

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_RANK_REPORTS_H_
