// What ranks agree on outside of steps: a size that all can have, whether all have succeeded, and
// whether all were given the same.
//
//   absl::StatusOr<Weights> weights = Load(...);
//   REPRISE_RETURN_IF_ERROR(StatusOverRanks(collectives, weights.status()));  // on all, or on none
//   REPRISE_ASSIGN_OR_RETURN(const int64_t blocks, LeastOverRanks(collectives, own_blocks));
//
// Every rank makes the same calls in the same order. Each is a gather or two of host tensors, of which
// the host waits. Without Collectives (null) a rank agrees with itself. Errors: also those of
// Collectives::AllGather().
//
// Thread safety: one thread a Collectives.

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

// The least of the ranks' values. If a rank has none, StatusOverRanks() of their statuses.
absl::StatusOr<int64_t> LeastOverRanks(Collectives* collectives,
                                       const absl::StatusOr<int64_t>& value);

// OK if the status of every rank is. Else, on every rank, the code and message of the first rank
// whose status is not, which the message names unless all ranks have the same status, or it begins with
// a rank already, as that of an earlier agreement does. Messages travel up to about 1000 characters.
absl::Status StatusOverRanks(Collectives* collectives, const absl::Status& own);

// FailedPrecondition on every rank, naming the first value that differs, the rank and both values,
// unless every rank gives the values of rank 0. names: of the values, as many; as many on each
// rank.
absl::Status CheckSameOverRanks(Collectives* collectives, absl::Span<const std::string_view> names,
                                absl::Span<const int64_t> values);

// The same of texts of `name=value` lines (RankOptionsText(), for example): names the first line that
// differs. Texts may be of any length and of unlike numbers of lines.
absl::Status CheckSameTextOverRanks(Collectives* collectives, const std::string& text);

// Whether every rank gives the text of rank 0; the same on all ranks.
absl::StatusOr<bool> IsSameTextOverRanks(Collectives* collectives, const std::string& text);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_AGREEMENT_H_
