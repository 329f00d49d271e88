#include "distributed/agreement.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "distributed/share.h"
#include "glog/logging.h"

namespace reprise {
namespace {

constexpr size_t kMessageBytes = 1016;

// A rank's status, as it travels.
struct StatusRecord {
  int64_t code = 0;
  char message[kMessageBytes] = {};
};

// [world, own.size()] int64: the values of all ranks.
absl::StatusOr<at::Tensor> GatherValues(Collectives& collectives, absl::Span<const int64_t> own) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const int64_t count = static_cast<int64_t>(own.size());
    const at::Tensor in = at::empty({count}, at::kLong);
    std::copy(own.begin(), own.end(), in.mutable_data_ptr<int64_t>());
    at::Tensor out = at::empty({collectives.ranks().world, count}, at::kLong);
    REPRISE_RETURN_IF_ERROR(collectives.AllGather(in, out));
    return out;
  });
}

}  // namespace

absl::StatusOr<int64_t> LeastOverRanks(Collectives* collectives,
                                       const absl::StatusOr<int64_t>& value) {
  if (RanksOf(collectives).world == 1) return value;
  REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, value.status()));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor values, GatherValues(*collectives, {*value}));
  const int64_t* const begin = values.const_data_ptr<int64_t>();
  return *std::min_element(begin, begin + values.numel());
}

absl::Status StatusOverRanks(Collectives* collectives, const absl::Status& own) {
  const int world = RanksOf(collectives).world;
  if (world == 1) return own;
  return CatchTorch([&]() -> absl::Status {
    StatusRecord record = {.code = static_cast<int64_t>(own.code())};
    std::string(own.message()).copy(record.message, kMessageBytes - 1);
    const int64_t bytes = sizeof(StatusRecord);
    const at::Tensor in = at::empty({bytes}, at::kByte);
    std::memcpy(in.mutable_data_ptr(), &record, sizeof(record));
    at::Tensor out = at::empty({world, bytes}, at::kByte);
    REPRISE_RETURN_IF_ERROR(collectives->AllGather(in, out));
    for (int rank = 0; rank < world; ++rank) {
      std::memcpy(&record, out[rank].const_data_ptr(), sizeof(record));
      if (record.code == 0) continue;
      record.message[kMessageBytes - 1] = '\0';
      const std::string message = record.message;
      return absl::Status(static_cast<absl::StatusCode>(record.code),
                          absl::StartsWith(message, "rank ")
                              ? message
                              : absl::StrCat("rank ", rank, ": ", message));
    }
    return absl::OkStatus();
  });
}

absl::Status CheckSameOverRanks(Collectives* collectives, absl::Span<const std::string_view> names,
                                absl::Span<const int64_t> values) {
  CHECK_EQ(names.size(), values.size());
  const int world = RanksOf(collectives).world;
  if (world == 1) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor gathered, GatherValues(*collectives, values));
  const int64_t* const first = gathered.const_data_ptr<int64_t>();
  for (int rank = 1; rank < world; ++rank) {
    const int64_t* const other = first + rank * values.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (other[i] == first[i]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(std::string(names[i]), " must be the same on all ranks: expected ", first[i],
                       " as on rank 0, got ", other[i], " on rank ", rank));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
