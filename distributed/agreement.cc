#include "reprise/distributed/agreement.h"

#include <ATen/ops/all.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/share.h"
#include "reprise/distributed/text_difference.h"

namespace reprise {
namespace {

constexpr size_t kMessageBytes = 1016;

// A rank's status, serialised for the gather.
struct StatusRecord {
  int64_t code = 0;
  char message[kMessageBytes] = {};
};

// Gathers `own` of all ranks. Returns [world, own.size()] int64.
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

// Returns the texts of all ranks, indexed by rank.
absl::StatusOr<std::vector<std::string>> GatherTexts(Collectives& collectives,
                                                     const std::string& own) {
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor sizes,
                           GatherValues(collectives, {static_cast<int64_t>(own.size())}));
  const int64_t* const size = sizes.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(1, *std::max_element(size, size + sizes.numel()));
  return CatchTorchOr([&]() -> absl::StatusOr<std::vector<std::string>> {
    const at::Tensor in = at::zeros({longest}, at::kByte);
    std::memcpy(in.mutable_data_ptr(), own.data(), own.size());
    at::Tensor out = at::empty({sizes.numel(), longest}, at::kByte);
    REPRISE_RETURN_IF_ERROR(collectives.AllGather(in, out));
    std::vector<std::string> texts;
    for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
      texts.emplace_back(static_cast<const char*>(out[rank].const_data_ptr()),
                         static_cast<size_t>(size[rank]));
    }
    return texts;
  });
}

// Formats both values for a message. If one is long, shows only the part around the first
// difference.
std::string ValuesText(const std::string& expected, const std::string& got, int rank) {
  constexpr size_t kMaxShown = 120;
  if (std::max(expected.size(), got.size()) > kMaxShown) {
    return absl::StrCat(TextDifference(expected, got), " on rank ", rank);
  }
  return absl::StrCat("expected ", expected, " as on rank 0, got ", got, " on rank ", rank);
}

// Returns the error that describes the first line in which the texts differ.
absl::Status LinesDiffer(const std::string& first, const std::string& other, int rank) {
  const std::vector<std::string> expected = absl::StrSplit(first, '\n');
  const std::vector<std::string> got = absl::StrSplit(other, '\n');
  const size_t line =
      std::mismatch(expected.begin(), expected.end(), got.begin(), got.end()).first -
      expected.begin();
  const auto name_of = [](const std::vector<std::string>& lines, size_t at) {
    return at < lines.size() ? lines[at].substr(0, lines[at].find('=')) : std::string();
  };
  const std::string name = name_of(expected, line);
  if (line < expected.size() && line < got.size() && name == name_of(got, line)) {
    const size_t begin = std::min(name.size() + 1, expected[line].size());
    return absl::FailedPreconditionError(
        absl::StrCat(name, " must be the same on all ranks: ",
                     ValuesText(expected[line].substr(begin),
                                got[line].substr(std::min(begin, got[line].size())), rank)));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("ranks must have the same options: ",
                   ValuesText(line < expected.size() ? expected[line] : "nothing",
                              line < got.size() ? got[line] : "nothing", rank)));
}

}  // namespace

absl::StatusOr<int64_t> MinOverRanks(Collectives* collectives,
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
    const bool is_of_all = out.eq(out[0]).all().item<bool>();
    for (int rank = 0; rank < world; ++rank) {
      std::memcpy(&record, out[rank].const_data_ptr(), sizeof(record));
      if (record.code == 0) continue;
      record.message[kMessageBytes - 1] = '\0';
      const std::string message = record.message;
      return absl::Status(static_cast<absl::StatusCode>(record.code),
                          is_of_all || absl::StartsWith(message, "rank ")
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

absl::Status CheckSameTextOverRanks(Collectives* collectives, const std::string& text) {
  if (RanksOf(collectives).world == 1) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(*collectives, text));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) return LinesDiffer(texts[0], texts[rank], static_cast<int>(rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IsSameTextOverRanks(Collectives* collectives, const std::string& text) {
  if (RanksOf(collectives).world == 1) return true;
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(*collectives, text));
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& other) { return other == texts[0]; });
}

}  // namespace reprise
