// Agreement between ranks outside of steps: a size that every rank can provide, whether every rank
// has succeeded, and whether every rank was given the same options.
//
//   absl::StatusOr<Weights> weights = Load(...);
//   REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, weights.status()));  // on all, or on none
//   REPRISE_ASSIGN_OR_RETURN(const int64_t blocks, MinOverRanks(collectives, own_blocks));
//
// Every rank makes the same calls in the same order. A call performs one or two gathers of host
// tensors and blocks until they have completed. Without Collectives (null), there is one rank:
// values and statuses are returned unchanged. Errors: also the errors of Collectives::AllGather().
//
// Thread safety: one thread per Collectives.

#ifndef REPRISE_DISTRIBUTED_AGREEMENT_H_
#define REPRISE_DISTRIBUTED_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/distributed/collectives.h"

namespace reprise {

// Returns the smallest value of all ranks. If `value` is an error on any rank, returns
// StatusOverRanks() of the statuses.
absl::StatusOr<int64_t> MinOverRanks(Collectives* collectives,
                                     const absl::StatusOr<int64_t>& value);

// Returns OK if the status of every rank is OK. Otherwise every rank returns the code and message
// of the first rank whose status is an error. The message is prefixed with "rank <n>: ", unless all
// ranks have the same status or the message already begins with "rank " (because of an earlier
// agreement). Messages are cut at about 1000 characters.
absl::Status StatusOverRanks(Collectives* collectives, const absl::Status& own);

// Returns FailedPrecondition on every rank if any rank's values differ from those on rank 0. The
// message contains the name of the first differing value, the rank and both values. `names` has one
// name per value. All ranks must pass the same number of values.
absl::Status CheckSameOverRanks(Collectives* collectives, absl::Span<const std::string_view> names,
                                absl::Span<const int64_t> values);

// Like CheckSameOverRanks(), for texts of `name=value` lines such as RankOptionsText(). The message
// contains the name of the first line that differs. The texts may have different lengths and
// numbers of lines.
absl::Status CheckSameTextOverRanks(Collectives* collectives, const std::string& text);

// Whether every rank passes the same text as rank 0. The result is the same on all ranks.
absl::StatusOr<bool> IsSameTextOverRanks(Collectives* collectives, const std::string& text);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_AGREEMENT_H_
