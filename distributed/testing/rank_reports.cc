#include "reprise/distributed/testing/rank_reports.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/distributed/launch.h"

namespace reprise {
namespace {

// A rank's report in memory that the processes share.
struct Report {
  std::atomic<bool> returned;
  int code;
  int64_t nanos;  // time since the start
  char message[4000];
};

// The reports of all ranks. Set only in the process of a rank.
Report* reports_of_ranks = nullptr;
int num_ranks = 0;

}  // namespace

RankReports::RankReports(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
                         absl::Duration limit)
    : reports_(world) {
  const size_t bytes = sizeof(Report) * world;
  auto* shared = static_cast<Report*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) {
    ADD_FAILURE() << "mmap() failed";
    return;
  }
  std::uninitialized_value_construct_n(shared, world);
  const absl::Time start = absl::Now();
  status_ = RunRanks(world,
                     [&](const RankPlace& place) -> absl::Status {
                       reports_of_ranks = shared;
                       num_ranks = world;
                       alarm(static_cast<unsigned>(absl::ToInt64Seconds(limit)));
                       const absl::Status status = body(place);
                       Report& report = shared[place.ranks.rank];
                       report.code = static_cast<int>(status.code());
                       std::strncpy(report.message, std::string(status.message()).c_str(),
                                    sizeof(report.message) - 1);
                       report.nanos = absl::ToInt64Nanoseconds(absl::Now() - start);
                       report.returned = true;
                       if (::testing::Test::HasFailure())
                         return absl::InternalError("expectations failed");
                       return absl::OkStatus();
                     },
                     {.grace = limit});
  for (int rank = 0; rank < world; ++rank) {
    const Report& report = shared[rank];
    if (!report.returned) continue;
    reports_[rank] = absl::Status(static_cast<absl::StatusCode>(report.code), report.message);
    took_ = std::max(took_, absl::Nanoseconds(report.nanos));
  }
  munmap(shared, bytes);
  const std::string message(status_.message());
  EXPECT_EQ(message.find("expectations failed"), std::string::npos) << message;
  EXPECT_EQ(message.find("signal 14"), std::string::npos) << message << ": it took too long";
}

bool RankReports::ok() const {
  return std::all_of(reports_.begin(), reports_.end(),
                     [](const auto& report) { return report && report->ok(); });
}

std::string RankReports::text() const {
  std::string text = status_.ToString();
  for (size_t rank = 0; rank < reports_.size(); ++rank) {
    absl::StrAppend(&text, "; rank ", rank, ": ",
                    reports_[rank] ? reports_[rank]->ToString() : "did not return");
  }
  return text;
}

void HangUntilOthersReturn() {
  const auto has_returned = [](const Report& report) { return report.returned.load(); };
  while (std::count_if(reports_of_ranks, reports_of_ranks + num_ranks, has_returned) <
         num_ranks - 1) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  _exit(1);
}

int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return ntohs(address.sin_port);
}

}  // namespace reprise
