#include "reprise/runner/rank_session.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"

namespace reprise {
namespace {

// Time limit for the work before a rank's first step: timing of GEMMs and capture of graphs.
// Assumes that a live rank needs less time.
constexpr absl::Duration kSetUpLimit = absl::Minutes(10);

}  // namespace

RankSession::RankSession(Collectives* collectives) : collectives_(collectives) {
  if (collectives == nullptr) return;
  fingerprint_name_ = absl::StrCat("collectives ", collectives->Fingerprint());
}

absl::Status RankSession::Telling(absl::FunctionRef<absl::Status()> work) {
  const absl::Status status = CatchTorch(work);
  if (!status.ok()) Tell(status);
  return status;
}

void RankSession::TellOfStep(const absl::Status& result) {
  if (result.ok() || absl::IsInvalidArgument(result) || absl::IsFailedPrecondition(result) ||
      absl::IsUnimplemented(result)) {
    return;
  }
  Tell(result);
}

void RankSession::Tell(const absl::Status& failure) {
  // If the Collectives have failed, all ranks know.
  if (RanksOf(collectives_).world > 1 && collectives_->status().ok()) collectives_->Fail(failure);
}

absl::Status RankSession::SetUp(absl::FunctionRef<absl::Status()> work) {
  return collectives_ == nullptr ? work() : collectives_->AwaitDevice(work, kSetUpLimit);
}

absl::Status RankSession::MeetBeforeCapture(DeviceDriver& driver) {
  if (collectives_ == nullptr || driver.device().is_cpu()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(collectives_->AwaitDevice([&] {
    driver.stream().synchronize();
    return absl::OkStatus();
  }));
  return collectives_->Barrier();
}

std::function<absl::StatusOr<bool>(bool)> RankSession::agree_over_budget() const {
  if (RanksOf(collectives_).world == 1) return nullptr;
  return [collectives = collectives_](bool is_over) -> absl::StatusOr<bool> {
    REPRISE_ASSIGN_OR_RETURN(const int64_t least, MinOverRanks(collectives, is_over ? 0 : 1));
    return least == 0;
  };
}

void RankSession::AddTo(Fingerprint& fingerprint) const {
  if (!fingerprint_name_.empty()) fingerprint.AddValue(fingerprint_name_, 1);
}

}  // namespace reprise
