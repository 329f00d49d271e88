// The agreement of one rank's runner with the other ranks of a divided model, and its reports of
// failures to them. Without other ranks every call does nothing, so callers need not ask.
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

  // Runs `work`. If it fails, fails the Collectives so that the other ranks stop waiting. Do not use
  // for errors that all ranks detect.
  absl::Status Telling(absl::FunctionRef<absl::Status()> work);

  // Fails the Collectives because of a step that may have failed on this rank only. Does nothing for
  // OK and for what is wrong with a batch, which all ranks detect.
  void TellOfStep(const absl::Status& result);

  // Runs the set-up of the runner, in which the host may wait for device work of all ranks.
  absl::Status SetUp(absl::FunctionRef<absl::Status()> work);

  // Returns when the work of all ranks on GPUs is done. Collectives must not run on one rank while
  // another one captures them.
  absl::Status MeetBeforeCapture(DeviceDriver& driver);

  // Whether any rank is over its budget of graph memory; null without other ranks (GraphSetOptions).
  std::function<absl::StatusOr<bool>(bool is_over)> agree_over_budget() const;

  void AddTo(Fingerprint& fingerprint) const;

 private:
  void Tell(const absl::Status& failure);

  Collectives* collectives_;
  std::string fingerprint_name_;  // empty: no collectives
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANK_SESSION_H_
