// Coordinates one rank's runner with the other ranks of a sharded model, and reports its failures
// to them. With a single rank, Telling() and SetUp() only run their `work`.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_RANK_SESSION_H_
#define REPRISE_RUNNER_RANK_SESSION_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/device/device_driver.h"

namespace reprise {

class Collectives;

class RankSession {
 public:
  // `collectives` must outlive the session. Null: one rank.
  explicit RankSession(Collectives* collectives);

  Collectives* collectives() const { return collectives_; }

  // Runs `work`, and converts its exceptions to errors. If it fails, fails the Collectives so that
  // the other ranks stop waiting. Do not use for errors that all ranks detect.
  absl::Status Telling(absl::FunctionRef<absl::Status()> work);

  // Fails the Collectives if `result` is an error that may have occurred on this rank only. Ignores
  // OK and errors with the codes of a wrong batch (InvalidArgument, FailedPrecondition,
  // Unimplemented): assumes that all ranks detect these.
  void TellOfStep(const absl::Status& result);

  // Runs the set-up of the runner, during which the host may wait for device work of all ranks.
  absl::Status SetUp(absl::FunctionRef<absl::Status()> work);

  // Waits until the GPU work of all ranks has completed; does nothing on the CPU. Collectives must
  // not run on one rank while another rank captures them.
  absl::Status MeetBeforeCapture(DeviceDriver& driver);

  // Returns a function that tells whether any rank exceeds its budget of graph memory; null with a
  // single rank (GraphSetOptions).
  std::function<absl::StatusOr<bool>(bool is_over)> agree_over_budget() const;

  void AddTo(Fingerprint& fingerprint) const;

 private:
  void Tell(const absl::Status& failure);

  Collectives* collectives_;
  std::string fingerprint_name_;  // empty: no collectives
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANK_SESSION_H_
