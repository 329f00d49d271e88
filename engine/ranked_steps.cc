#include "reprise/engine/ranked_steps.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/catch_all.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/slots/batch_bytes.h"

namespace reprise {
namespace {

constexpr int64_t kStep = 1;
constexpr int64_t kEnd = 2;
constexpr int64_t kIdle = 3;

// The header of each message of rank 0. The bytes of the batch follow, in a second broadcast if
// they do not fit into the message.
struct StepHeader {
  int64_t kind = 0;
  int64_t num_bytes = 0;  // size of the batch
  // Totals on rank 0 before this step: refused batches, awaited steps, and failed steps among the
  // awaited steps.
  int64_t num_refused = 0;
  int64_t num_awaited = 0;
  int64_t num_failed = 0;
};

constexpr int64_t kMessageBytes = 8192;
constexpr int64_t kBytesInMessage = kMessageBytes - int64_t{sizeof(StepHeader)};

at::Tensor HostBytes(int64_t size) { return at::empty({size}, at::TensorOptions(at::kByte)); }

char* DataOf(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

absl::Status Differs(std::string_view what, const absl::Status& own, std::string_view rank_0) {
  return absl::InternalError(absl::StrCat(std::string(what), ": here ", own.ToString(), ", ",
                                          std::string(rank_0), " on rank 0"));
}

// Returns the output of a step, or the error of a failed rank that the device would wait for.
absl::StatusOr<StepResult> AwaitOnDevice(StepRunner& steps, Collectives& collectives,
                                         int64_t ticket) {
  absl::StatusOr<StepResult> output;
  REPRISE_RETURN_IF_ERROR(collectives.AwaitDevice([&] {
    output = CatchAll([&] { return steps.Await(ticket); });
    return absl::OkStatus();
  }));
  return output;
}

// Runs the steps of rank 0 on another rank.
class Follower {
 public:
  Follower(StepRunner& steps, Collectives& collectives)
      : steps_(steps), collectives_(collectives), message_(HostBytes(kMessageBytes)) {}

  absl::Status Run() {
    while (true) {
      REPRISE_RETURN_IF_ERROR(collectives_.Broadcast(message_, /*root=*/0));
      StepHeader header;
      std::memcpy(&header, DataOf(message_), sizeof(header));
      REPRISE_RETURN_IF_ERROR(CatchUp(header));
      if (header.kind == kEnd) return absl::OkStatus();
      if (header.kind == kIdle) continue;
      REPRISE_ASSIGN_OR_RETURN(const ScheduledBatch* const batch, Receive(header.num_bytes));
      absl::StatusOr<int64_t> ticket;
      REPRISE_RETURN_IF_ERROR(collectives_.AwaitDevice([&] {
        ticket = CatchAll([&] { return steps_.Launch(*batch); });
        return absl::OkStatus();
      }));
      if (ticket.ok()) {
        in_flight_.push_back(*ticket);
      } else {
        ++num_refused_;
        refusal_ = ticket.status();
      }
      REPRISE_RETURN_IF_ERROR(steps_.status());
    }
  }

 private:
  // Awaits the steps that rank 0 has awaited, and compares the outcomes.
  absl::Status CatchUp(const StepHeader& header) {
    if (header.num_refused != num_refused_) {
      return header.num_refused < num_refused_
                 ? Differs("the last batch was refused", refusal_, "but not")
                 : Differs("the last batch was not refused", absl::OkStatus(), "but was refused");
    }
    while (num_awaited_ < header.num_awaited && !in_flight_.empty()) {
      const absl::StatusOr<StepResult> output =
          AwaitOnDevice(steps_, collectives_, in_flight_.front());
      in_flight_.pop_front();
      ++num_awaited_;
      if (!output.ok()) {
        ++num_failed_;
        failure_ = output.status();
      }
      REPRISE_RETURN_IF_ERROR(collectives_.status());
      REPRISE_RETURN_IF_ERROR(steps_.status());
    }
    if (header.num_awaited != num_awaited_) {
      return absl::InternalError(absl::StrCat("steps awaited: expected ", header.num_awaited,
                                              " as on rank 0, got ", num_awaited_));
    }
    if (header.num_failed == num_failed_) return absl::OkStatus();
    return header.num_failed < num_failed_
               ? Differs("a step failed", failure_, "but not")
               : Differs("no step failed", absl::OkStatus(), "but one failed");
  }

  // Receives the batch. Valid until the next call.
  absl::StatusOr<const ScheduledBatch*> Receive(int64_t num_bytes) {
    const char* bytes = DataOf(message_) + sizeof(StepHeader);
    if (num_bytes > kBytesInMessage) {
      if (!long_batch_.defined() || long_batch_.numel() < num_bytes) {
        long_batch_ = HostBytes(num_bytes);
      }
      at::Tensor batch = long_batch_.narrow(0, 0, num_bytes);
      REPRISE_RETURN_IF_ERROR(collectives_.Broadcast(batch, /*root=*/0));
      bytes = DataOf(batch);
    }
    return reader_.Read(
        {reinterpret_cast<const std::byte*>(bytes), static_cast<size_t>(num_bytes)});
  }

  StepRunner& steps_;
  Collectives& collectives_;
  at::Tensor message_, long_batch_;
  BatchReader reader_;
  std::deque<int64_t> in_flight_;  // tickets, oldest first
  int64_t num_refused_ = 0, num_awaited_ = 0, num_failed_ = 0;
  absl::Status refusal_, failure_;  // the last refused batch, the last failed step
};

}  // namespace

RankedSteps::RankedSteps(std::unique_ptr<StepRunner> steps, Collectives* collectives)
    : steps_(std::move(steps)), collectives_(*collectives), message_(HostBytes(kMessageBytes)) {
  CHECK_EQ(collectives->ranks().rank, 0);
}

RankedSteps::~RankedSteps() {
  bytes_.clear();
  TellIfDead();
  if (!status().ok()) return;  // the other ranks have the error already
  if (const absl::Status told = Send(kEnd); !told.ok()) {
    LOG(ERROR) << "failed to stop the other ranks: " << told;
  }
}

absl::Status RankedSteps::CheckEmbeddings(std::string_view argument,
                                          const EmbeddingRows& rows) const {
  if (rows.gpu != kHostMemory) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(argument), " must be on the host, to be sent to ",
                     collectives_.ranks().world - 1, " other ranks: got rows on a GPU"));
  }
  return steps_->CheckEmbeddings(argument, rows);
}

absl::Status RankedSteps::Send(int64_t kind) {
  const int64_t num_bytes = static_cast<int64_t>(bytes_.size());
  const StepHeader header = {.kind = kind,
                             .num_bytes = num_bytes,
                             .num_refused = num_refused_,
                             .num_awaited = num_awaited_,
                             .num_failed = num_failed_};
  std::memcpy(DataOf(message_), &header, sizeof(header));
  const bool is_long = num_bytes > kBytesInMessage;
  if (!is_long && num_bytes > 0) {
    std::memcpy(DataOf(message_) + sizeof(header), bytes_.data(), bytes_.size());
  }
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(collectives_.Broadcast(message_, /*root=*/0));
    if (!is_long) return absl::OkStatus();
    at::Tensor batch = HostBytes(num_bytes);
    std::memcpy(DataOf(batch), bytes_.data(), bytes_.size());
    return collectives_.Broadcast(batch, /*root=*/0);
  });
}

absl::StatusOr<int64_t> RankedSteps::Launch(const ScheduledBatch& batch) {
  REPRISE_RETURN_IF_ERROR(status());
  WriteBatch(batch, bytes_);
  sent_ = Send(kStep);
  REPRISE_RETURN_IF_ERROR(sent_);
  absl::StatusOr<int64_t> ticket;
  REPRISE_RETURN_IF_ERROR(collectives_.AwaitDevice([&] {
    ticket = CatchAll([&] { return steps_->Launch(batch); });
    return absl::OkStatus();
  }));
  if (!ticket.ok()) ++num_refused_;
  TellIfDead();
  return ticket;
}

absl::StatusOr<StepResult> RankedSteps::Await(int64_t step) {
  absl::StatusOr<StepResult> output = AwaitOnDevice(*steps_, collectives_, step);
  ++num_awaited_;
  if (!output.ok()) ++num_failed_;
  TellIfDead();
  return output;
}

absl::Status RankedSteps::Idle() {
  REPRISE_RETURN_IF_ERROR(status());
  bytes_.clear();
  sent_ = Send(kIdle);
  return sent_;
}

void RankedSteps::TellIfDead() {
  const absl::Status own = status();
  if (!own.ok() && collectives_.status().ok()) collectives_.Fail(own);
}

absl::Status RankedSteps::status() const {
  REPRISE_RETURN_IF_ERROR(sent_);
  REPRISE_RETURN_IF_ERROR(collectives_.status());
  return steps_->status();
}

absl::Status FollowSteps(StepRunner& steps, Collectives& collectives) {
  CHECK_NE(collectives.ranks().rank, 0);
  const absl::Status status = CatchTorch([&] { return Follower(steps, collectives).Run(); });
  if (!status.ok() && collectives.status().ok()) collectives.Fail(status);
  return status;
}

}  // namespace reprise
