#include "reprise/distributed/peers.h"

#ifdef REPRISE_WITH_C10D

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/text_difference.h"
#include "reprise/distributed/timed_call.h"

namespace reprise {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);

// The prefix of the names of subgroups.
constexpr char kPartMark[] = " of ranks ";

// Returns the name of the group of the call `what`, the argument of Explain().
std::string GroupOf(const std::string& what) {
  const size_t mark = what.rfind(kPartMark);
  return mark == std::string::npos ? "" : what.substr(mark);
}

std::string Key(const char* name, int rank) { return absl::StrCat(name, "/", rank); }

bool Has(c10d::Store& store, const std::string& key) { return store.check({key}); }

// Returns the first line of a LibTorch exception, without the stack trace after it.
std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string Packed(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), "\n", std::string(status.message()));
}

absl::Status Unpacked(const std::string& text) {
  const size_t end = text.find('\n');
  int code = 0;
  if (end == std::string::npos || !absl::SimpleAtoi(text.substr(0, end), &code) || code == 0) {
    return absl::InternalError(absl::StrCat("the store must hold a Status: got \"", text, "\""));
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text.substr(end + 1));
}

// Returns the state and start time of a process: fields 3 and 22 of /proc/PID/stat. Both are empty
// if there is no such process.
std::array<std::string, 2> StateAndStart(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // Field 2 is a name in parentheses, which may contain any characters.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  std::array<std::string, 2> result;
  std::string field;
  for (int number = 3; number <= 22 && rest >> field; ++number) {
    if (number == 3) result[0] = field;
    if (number == 22) result[1] = field;
  }
  return result;
}

// Returns the name of this machine and the PID namespace of this process.
std::string Host() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof(name) - 1);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) return name;
  return absl::StrCat(name, " ", space);
}

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> OpenTcp(const std::string& address, bool serves,
                                                        absl::Duration timeout) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("store must be tcp:HOST:PORT: got \"tcp:", address, "\""));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = absl::ToChronoMilliseconds(timeout);
  struct Opened {
    c10::intrusive_ptr<c10d::Store> store;
    std::string error;
  };
  // TCPStore waits without a timeout for a server that accepts the connection but does not answer.
  const std::optional<Opened> opened = CallWithin<Opened>(
      timeout + absl::Seconds(1), [host = address.substr(0, colon), options]() -> Opened {
        try {
          return {.store = c10::make_intrusive<c10d::TCPStore>(host, options), .error = {}};
        } catch (const std::exception& exception) {
          return {.store = {}, .error = FirstLine(exception)};
        }
      });
  if (opened.has_value() && opened->store) return opened->store;
  const std::string error =
      opened.has_value() ? opened->error : "a process listens on the port but does not answer";
  if (absl::StrContains(error, "EADDRINUSE") || absl::StrContains(error, "in use")) {
    return absl::UnavailableError(
        absl::StrCat("port ", port, " is in use: set MASTER_PORT to another (", error, ")"));
  }
  return absl::DeadlineExceededError(absl::StrCat("the store ", address, " did not answer within ",
                                                  absl::FormatDuration(timeout), ": ", error));
}

// Checks that the file can be opened: FileStore would retry for minutes.
absl::Status CheckFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::UnavailableError(
        absl::StrCat("the store file:", path, " cannot be opened: ", std::strerror(errno)));
  }
  close(file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> Peers::OpenStore(const RankPlace& place,
                                                                 absl::Duration timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (place.store.rfind("file:", 0) == 0) {
    REPRISE_RETURN_IF_ERROR(CheckFile(place.store.substr(5)));
    try {
      store = c10::make_intrusive<c10d::FileStore>(place.store.substr(5), -1);
      store->setTimeout(absl::ToChronoMilliseconds(timeout));
    } catch (const std::exception& error) {
      return absl::UnavailableError(
          absl::StrCat("the store ", place.store, " cannot be opened: ", FirstLine(error)));
    }
  } else if (place.store.rfind("tcp:", 0) == 0) {
    REPRISE_ASSIGN_OR_RETURN(store, OpenTcp(place.store.substr(4), place.serves_store, timeout));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("store must be file:PATH or tcp:HOST:PORT: got \"", place.store, "\""));
  }
  return c10::intrusive_ptr<c10d::Store>(
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("reprise/", place.run), store));
}

Peers::Process Peers::Own() const {
  return {.world = ranks_.world,
          .pid = getpid(),
          .start = StateAndStart(getpid())[1],
          .host = Host(),
          .config = options_.config};
}

std::string Peers::Describe(int rank) const {
  const Process& process = processes_[rank];
  if (process.pid == 0) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (process ", process.pid, " on ",
                      process.host.substr(0, process.host.find(' ')), ")");
}

bool Peers::HasEnded(int rank) const {
  const Process& process = processes_[rank];
  if (process.pid == 0 || process.host != processes_[ranks_.rank].host) return false;
  const auto [state, start] = StateAndStart(process.pid);
  return state.empty() || state == "Z" || state == "X" || start != process.start;
}

absl::Status Peers::Ask(absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "the store of the ranks, which rank 0 or its launcher serves, does not answer: ",
        FirstLine(error)));
  }
}

std::optional<absl::Status> Peers::Settled() {
  if (!Has(*store_, "finding")) return std::nullopt;
  const absl::Status finding = Unpacked(store_->get_to_str("finding"));
  // The store may end before it confirms that the last reader has read.
  Ask([&] {
    store_->add("readers", 1);
    Linger(options_.grace);
    return absl::OkStatus();
  }).IgnoreError();
  return finding;
}

absl::Status Peers::Settle(const absl::Status& finding, int num_readers, absl::Duration patience) {
  if (store_->add("findings", 1) != 1) {
    // Another rank was first and will store its finding shortly.
    const absl::Time deadline = absl::Now() + options_.grace;
    while (absl::Now() < deadline) {
      if (const auto settled = Settled()) return *settled;
      absl::SleepFor(kPoll);
    }
    return finding;
  }
  store_->set("num_readers", absl::StrCat(num_readers));
  store_->set("finding", Packed(finding));
  Linger(patience);
  return finding;
}

void Peers::Linger(absl::Duration patience) {
  if (!options_.serves_store) return;
  int num_readers = 0;
  if (!absl::SimpleAtoi(store_->get_to_str("num_readers"), &num_readers)) return;
  const absl::Time deadline = absl::Now() + patience;
  while (absl::Now() < deadline && store_->add("readers", 0) < num_readers) absl::SleepFor(kPoll);
}

absl::StatusOr<std::unique_ptr<Peers>> Peers::Meet(c10::intrusive_ptr<c10d::Store> store,
                                                   const Ranks& ranks,
                                                   const PeersOptions& options) {
  if (ranks.world < 1 || ranks.rank < 0 || ranks.rank >= ranks.world) {
    return absl::InvalidArgumentError(absl::StrCat("ranks must have 0 <= rank < world: got rank ",
                                                   ranks.rank, " of ", ranks.world));
  }
  std::unique_ptr<Peers> peers(new Peers(std::move(store), ranks, options));
  REPRISE_RETURN_IF_ERROR(peers->Ask([&] { return peers->MeetAll(); }));
  return peers;
}

absl::Status Peers::MeetAll() {
  const int own = ranks_.rank;
  processes_[own] = Own();
  const Process& mine = processes_[own];
  if (store_->add(Key("came", own), 1) > 1) {
    return Settle(absl::InvalidArgumentError(absl::StrCat(
                      Describe(own), " is not the first rank ", own,
                      " in this store: every rank must start once, and the store must be new")),
                  ranks_.world, options_.timeout);
  }
  store_->set(Key("hello", own), absl::StrCat(mine.world, "\n", mine.pid, "\n", mine.start, "\n",
                                              mine.host, "\n", mine.config));
  const absl::Time deadline = absl::Now() + options_.timeout;
  while (true) {
    if (const auto settled = Settled()) return *settled;
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_.world; ++rank) {
      if (processes_[rank].pid != 0) continue;
      if (!Has(*store_, Key("hello", rank))) {
        missing.push_back(rank);
        continue;
      }
      Process& process = processes_[rank];
      std::istringstream hello(store_->get_to_str(Key("hello", rank)));
      std::string world, pid;
      std::getline(hello, world);
      std::getline(hello, pid);
      std::getline(hello, process.start);
      std::getline(hello, process.host);
      process.config.assign(std::istreambuf_iterator<char>(hello), {});
      if (!absl::SimpleAtoi(world, &process.world) || !absl::SimpleAtoi(pid, &process.pid)) {
        return absl::InternalError(
            absl::StrCat("rank ", rank, " has published no valid process data"));
      }
      if (const absl::Status status = Compare(rank); !status.ok()) {
        // Other ranks may join later and must find this result in the store.
        return Settle(status, ranks_.world - 1, deadline - absl::Now());
      }
    }
    if (missing.empty()) break;
    if (absl::Now() >= deadline) {
      return Settle(
          absl::DeadlineExceededError(absl::StrCat(
              missing.size() > 1 ? "ranks " : "rank ", absl::StrJoin(missing, ", "), " of ",
              ranks_.world, " did not come within ", absl::FormatDuration(options_.timeout))),
          ranks_.world - 1 - static_cast<int>(missing.size()), options_.grace);
    }
    absl::SleepFor(kPoll);
  }
  one_host_ = std::all_of(processes_.begin(), processes_.end(),
                          [&](const Process& process) { return process.host == mine.host; });
  // No rank continues before all ranks have verified the data of all other ranks.
  store_->add("met", 1);
  while (store_->add("met", 0) < ranks_.world) {
    if (const auto settled = Settled()) return *settled;
    if (absl::Now() >= deadline + options_.grace) {
      return FindCulprit("the end of the rendezvous", "not all ranks have confirmed it");
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

absl::Status Peers::Compare(int rank) const {
  const Process& other = processes_[rank];
  if (other.world != ranks_.world) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(rank), " has a world of ", other.world,
                                                   " ranks, and rank ", ranks_.rank, " one of ",
                                                   ranks_.world));
  }
  if (other.config != options_.config) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(rank), " has a different configuration from rank ", ranks_.rank, ": ",
                     TextDifference(options_.config, other.config)));
  }
  return absl::OkStatus();
}

std::unique_ptr<Peers> Peers::Part(const std::vector<int>& members) const {
  std::unique_ptr<Peers> part(new Peers(store_, ranks_, options_));
  const auto own = std::find(members.begin(), members.end(), ranks_.rank);
  part->group_ = {.rank = static_cast<int>(own - members.begin()),
                  .world = static_cast<int>(members.size())};
  part->members_ = members;
  part->name_ = absl::StrCat(kPartMark, absl::StrJoin(members, ", "));
  part->processes_ = processes_;
  part->one_host_ = one_host_;
  return part;
}

absl::Status Peers::Explain(const std::string& what, const std::string& error) {
  const absl::Status finding = Ask([&] {
    store_->set(Key("failed", ranks_.rank), what);
    return FindCulprit(what, error);
  });
  return absl::Status(finding.code(),
                      absl::StrCat(what, " failed: ", std::string(finding.message())));
}

absl::Status Peers::FindCulprit(const std::string& what, const std::string& error) {
  const absl::Time deadline = absl::Now() + options_.grace;
  while (true) {
    if (const auto settled = Settled()) return *settled;
    std::vector<std::string> silent, ended, elsewhere;
    std::map<std::string, std::vector<std::string>> reporters = {{what, {Describe(ranks_.rank)}}};
    bool all_silent_ended = true;
    bool is_chain =
        false;  // whether a rank failed in another group's call, whose members may find the cause
    for (int rank = 0; rank < ranks_.world; ++rank) {
      if (rank == ranks_.rank) continue;
      if (Has(*store_, Key("gave_up", rank))) {
        const absl::Status why = Unpacked(store_->get_to_str(Key("gave_up", rank)));
        return Settle(
            absl::UnavailableError(absl::StrCat(Describe(rank), ": ", std::string(why.message()))),
            ranks_.world - 2, options_.grace);
      }
      if (Has(*store_, Key("failed", rank))) {
        const std::string other = store_->get_to_str(Key("failed", rank));
        reporters[other].push_back(Describe(rank));
        if (other != what) elsewhere.push_back(absl::StrCat(Describe(rank), " in ", other));
        is_chain = is_chain || GroupOf(other) != name_;
      } else if (HasEnded(rank)) {
        ended.push_back(Describe(rank));
      } else if (std::find(members_.begin(), members_.end(), rank) != members_.end()) {
        silent.push_back(Describe(rank));
        all_silent_ended = false;
      }
    }
    const bool late = absl::Now() >= deadline;
    if (!ended.empty() && (all_silent_ended || late)) {
      const int readers = ranks_.world - 1 - static_cast<int>(ended.size() + silent.size());
      return Settle(
          absl::UnavailableError(absl::StrCat(
              absl::StrJoin(ended, ", "), ended.size() > 1 ? " have" : " has", " ended: ", error)),
          readers, options_.grace);
    }
    if (silent.empty() && (!is_chain || absl::Now() >= deadline + options_.grace)) {
      // A rank that hangs in device work is reported only by its own watch. The other ranks wait
      // for it in their next call.
      const auto behind = reporters.extract(kDeviceWork);
      if (!behind.empty() && reporters.size() == 1) {
        return Settle(absl::DeadlineExceededError(absl::StrCat(
                          absl::StrJoin(behind.mapped(), ", "), " did not reach ",
                          reporters.begin()->first, ": ", kDeviceWork, " did not end in time")),
                      ranks_.world - 1, options_.grace);
      }
      return Settle(absl::InternalError(absl::StrCat(
                        "every rank reports a failure",
                        elsewhere.empty() ? "" : absl::StrCat(", ", absl::StrJoin(elsewhere, ", ")),
                        ": ", error)),
                    ranks_.world - 1, options_.grace);
    }
    if (late && !silent.empty()) {
      return Settle(absl::DeadlineExceededError(absl::StrCat(absl::StrJoin(silent, ", "),
                                                             " did not reach ", what, ": ", error)),
                    ranks_.world - 1 - static_cast<int>(silent.size()), options_.grace);
    }
    absl::SleepFor(kPoll);
  }
}

void Peers::Fail(const absl::Status& why) {
  // If the store has ended, no rank can read the report.
  Ask([&] {
    store_->set(Key("gave_up", ranks_.rank), Packed(why));
    store_->set(Key("failed", ranks_.rank), "giving up");
    store_->set("any_gave_up", "1");
    return absl::OkStatus();
  }).IgnoreError();
}

void Peers::AwaitHeard() {
  if (!options_.serves_store) return;
  const absl::Time deadline = absl::Now() + options_.grace;
  Ask([&] {
    while (!Has(*store_, "finding") && absl::Now() < deadline) absl::SleepFor(kPoll);
    if (Has(*store_, "finding")) Linger(deadline - absl::Now());
    return absl::OkStatus();
  }).IgnoreError();
}

absl::Status Peers::Reported() {
  return Ask([&]() -> absl::Status {
    if (const auto settled = Settled()) return *settled;
    if (Has(*store_, "any_gave_up")) return FindCulprit("this step", "a rank has given up");
    return absl::OkStatus();
  });
}

absl::Status Peers::Lost() {
  if (store_has_ended_) return absl::OkStatus();
  const absl::Status asked = Ask([&] {
    if (Has(*store_, Key("left", 0))) first_has_left_ = true;
    return absl::OkStatus();
  });
  if (!asked.ok() && first_has_left_) {
    store_has_ended_ = true;
    return absl::OkStatus();
  }
  REPRISE_RETURN_IF_ERROR(asked);
  const absl::Status lost = Reported();
  return lost.ok() ? Ended() : lost;
}

absl::Status Peers::Ended() {
  for (int rank = 0; rank < ranks_.world; ++rank) {
    if (rank == ranks_.rank || !HasEnded(rank) || (rank == 0 && first_has_left_)) continue;
    bool left = false;
    REPRISE_RETURN_IF_ERROR(Ask([&] {
      left = Has(*store_, Key("left", rank));
      return absl::OkStatus();
    }));
    if (!left) return Explain(kDeviceWork, "it waits for that rank");
  }
  return absl::OkStatus();
}

void Peers::Leave() {
  Ask([&] {
    store_->set(Key("left", ranks_.rank), "1");
    const std::string num_left = absl::StrCat("num_left", name_);
    store_->add(num_left, 1);
    if (!options_.serves_store) return absl::OkStatus();
    const absl::Time deadline = absl::Now() + options_.grace;
    while (store_->add(num_left, 0) < group_.world && absl::Now() < deadline) {
      absl::SleepFor(kPoll);
    }
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace reprise

#endif  // REPRISE_WITH_C10D
